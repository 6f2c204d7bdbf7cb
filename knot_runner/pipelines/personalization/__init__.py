"""Personalization of clients' models after the last round, and evaluation on all clients' test examples.

Start in ``personalized.py``.
"""
