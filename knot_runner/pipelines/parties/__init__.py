"""Parties of a distillation: setup in ``setup.py``, and evaluation in ``evaluation.py``."""
