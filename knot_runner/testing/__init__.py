"""Checks that a part of your own keeps the contract of its table: each raises ``AssertionError`` and needs no pytest.

* :func:`check_method`: a federated algorithm, by small runs of it
"""

from knot_runner.testing.methods import check_method

__all__ = ["check_method"]
