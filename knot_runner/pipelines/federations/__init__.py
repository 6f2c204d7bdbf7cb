"""Conversion of a task to a federation. Each data set becomes a party whose examples are in the store.

Start in ``parties.py``.
"""
