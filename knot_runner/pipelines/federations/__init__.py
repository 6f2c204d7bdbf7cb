"""Conversion of a task's stored examples to a federation of parties, for texts and images.

Start in ``parties.py``, where each data set becomes a party according to its role.
"""
