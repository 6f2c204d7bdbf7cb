"""Clients that train in rounds: their examples, models and held-out measures.

Start with ``setup.py``: examples are read and assigned to clients, and the initial model is built.
"""
