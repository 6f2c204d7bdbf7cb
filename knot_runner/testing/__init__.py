"""Checks of one's own parts: each raises ``AssertionError`` that says what is broken, and needs no test framework.

- :func:`check_term`: a loss term of ``method=distil``
- :func:`check_weighting`: a weighting of teachers
"""

from knot_runner.testing.distillation import check_term, check_weighting
