"""Comparison of model soups (interpolations of weights) with other personalization methods.

Fine-tuning and soups are in ``knot_runner/methods/personalization``.
"""
