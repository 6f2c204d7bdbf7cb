"""Checks that a part of your own keeps the contract of its table: each raises ``AssertionError`` and needs no pytest.

* :func:`check_metric`: an entry of ``METRICS``
* :func:`check_tracker`: an entry of ``TRACKERS``
"""

from knot_runner.testing.metrics import check_metric
from knot_runner.testing.trackers import check_tracker
