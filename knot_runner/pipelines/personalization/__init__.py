"""Clients' own models after the rounds, evaluated on all clients' test examples.

Start with ``personalized.py``.
"""
