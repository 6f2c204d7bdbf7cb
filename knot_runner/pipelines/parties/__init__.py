"""Parties of a distillation: the federation that a method sees, finished teachers, and what came out.

Open ``setup.py`` first; ``evaluation.py`` is what comes after the last stage.
"""
