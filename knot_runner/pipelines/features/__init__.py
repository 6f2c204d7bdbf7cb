"""Representations of examples when no model is trained: pixels, codes, words, or an encoder's output at [CLS].

Start with ``encoding.py``, which reads the examples and knows the rows of each client.
"""
