"""Parties of a distillation: the federation that a method sees, finished teachers, and the evaluation.

Start with ``setup.py``; ``evaluation.py`` runs after the last stage.
"""
