"""Agreement of two orders, by hand."""

import numpy as np
import pytest

from knot_runner.report.statistics.intervals import agreement_of


def test_agreement_by_hand():
    """Exact 1, 2, 4; ours 3, 2, 8: ranks 2, 1, 3 for 1, 2, 3, so rho = 1 - 6 * 2 / 24; one of three orders turned."""
    found = agreement_of(np.array([3.0, 2.0, 8.0]), np.array([1.0, 2.0, 4.0]))
    assert found.spearman == pytest.approx(0.5)
    assert (found.kept, found.relations) == (2, 3)
    assert found.inflation == 2.0  # of 3, 1, 2


def test_agreement_of_is_none_without_an_order():
    some, flat = np.array([1.0, 2.0, 4.0]), np.ones(3)
    assert agreement_of(some, flat) is None and agreement_of(flat, some) is None
    assert agreement_of(some[:1], some[:1]) is None
