"""Clients' own models after the rounds, measured on everybody's test examples.

Open ``personalized.py`` first.
"""
