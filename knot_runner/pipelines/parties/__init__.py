"""Parties of a distillation: the federation that the method receives, finished teachers, and the evaluation.

Start in ``setup.py``. ``evaluation.py`` runs after the last stage.
"""
