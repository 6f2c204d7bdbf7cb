"""Conversion of a task's examples in the store to a federation of parties, for texts and images.

Start with ``parties.py``: the data sets are the parties, by their roles.
"""
