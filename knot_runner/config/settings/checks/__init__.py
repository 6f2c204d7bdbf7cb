"""Compatibility of the groups of a composed config: models, personalization, distillation, views of images.

Start with ``fit.py``: task, method, model, training and partition.
"""
