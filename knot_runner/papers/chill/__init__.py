"""Logit chilling (FLex&Chill, arXiv 2401.09986): temperature probe, figures and tables.

The method itself is in ``knot_runner/methods``. It trains with a softmax temperature below 1.
"""
