"""Checks that a part of your own keeps the contract of its table: each raises ``AssertionError`` and needs no pytest.

* :func:`check_term`: an entry of ``TERMS``
* :func:`check_weighting`: an entry of ``WEIGHTINGS``
"""

from knot_runner.testing.distillation import check_term, check_weighting
