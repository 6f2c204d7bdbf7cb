"""Every entry of ``METRICS``, and a plug-in's, keeps the contract; what breaks it is reported."""

import dataclasses

import pytest

from knot_runner.config.plugins import load_plugins
from knot_runner.metrics import METRICS, Metric
from knot_runner.testing import check_metric
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401

pytestmark = pytest.mark.usefixtures("tables_restored")
F1 = METRICS["f1"]


@pytest.mark.parametrize("name", METRICS)
def test_metric_keeps_its_contract(name):
    check_metric(name)


def test_metric_of_a_plugin_keeps_its_contract():
    load_plugins([str(EXAMPLES / "own_metric.py")])
    check_metric("balanced_accuracy", examples=25, classes=10)


def batch_share(sums):
    values = F1.of_sums(sums)
    return values * (1 if len(values) == 1 else 0.5)


def share_of_the_largest(test):
    """A value of an example that depends on the others."""
    distances = METRICS["sd"].of_examples(test)
    return distances / (1 + distances.max())


@pytest.mark.parametrize(("broken", "message"), [
    (Metric("x", "larger"), "better='larger'"), (Metric("x", "higher", scale=0), "scale=0"),
    (Metric("x", "higher", lambda test: None), "is None, not a finite number"),
    (Metric("x", "higher", lambda test: 2.0, top=1.0), "is 2.0, not a finite number from 0 to 1.0"),
    (Metric("x", "higher", lambda test: float(test.labels[0])), "depends on the order"),
    (Metric("x", "lower", lambda test: F1.value(test)), "worse than"),
    (dataclasses.replace(F1, of_sums=lambda sums: sums.hits.sum(1)), "not a finite number from 0 to 1.0"),
    (dataclasses.replace(F1, of_sums=lambda sums: F1.of_sums(sums)[:1]), "on a batch"),
    (dataclasses.replace(METRICS["sd"], of_examples=share_of_the_largest), "of two parts"),
    (dataclasses.replace(F1, of_sums=batch_share), "on a batch"),
])  # fmt: skip
def test_check_metric_reports_a_broken_contract(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_metric(broken)


def test_check_metric_passes_read_only_arrays():
    with pytest.raises(ValueError, match="read-only"):
        check_metric(Metric("x", "higher", lambda test: test.labels.sort()))
