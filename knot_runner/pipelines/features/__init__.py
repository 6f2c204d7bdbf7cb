"""Representations of examples for runs that train no model: pixels, codes, words, or an encoder's [CLS] output.

Start in ``encoding.py``, which reads the examples and selects the rows of each client.
"""
