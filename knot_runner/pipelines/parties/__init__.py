"""Parties of a distillation: the federation that a method sees, finished teachers, and the evaluation.

Open ``setup.py`` first; ``evaluation.py`` is what comes after the last stage.
"""
