"""Personalization of clients' models after the rounds, evaluated on all clients' test examples.

Start in ``personalized.py``.
"""
