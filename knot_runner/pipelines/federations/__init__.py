"""Conversion of a task to a federation of parties whose examples are in the store, for texts and images.

Start in ``parties.py``, where each data set becomes a party according to its role.
"""
