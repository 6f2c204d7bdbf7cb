"""Logit chilling (FLex&Chill, arXiv 2401.09986): temperature probe, figures and tables.

The method, training with a softmax temperature below 1, is part of the core.
"""
