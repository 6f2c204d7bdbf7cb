"""Comparison with the results of RepDistiller (Tian et al. 2020), a benchmark of distillation methods.

The methods are in ``knot_runner/methods/distill``.
"""
