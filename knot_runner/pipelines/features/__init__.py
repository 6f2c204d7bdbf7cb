"""Conversion of examples to points, to measure distances between data.

The points are pixels, codes of an autoencoder, word frequencies, or [CLS] outputs of an encoder. Start in
``encoding.py``.
"""
