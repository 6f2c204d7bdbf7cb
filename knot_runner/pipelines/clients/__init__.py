"""Clients that train in rounds: their examples, models and held-out measures.

Open ``setup.py`` first: examples read and assigned to clients, and the model they start from.
"""
