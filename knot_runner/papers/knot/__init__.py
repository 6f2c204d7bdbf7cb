"""KNOT (arXiv 2110.02432): figures, Table 1 and the generalization bound.

The method itself is in ``knot_runner/methods/knot.py``.
"""
