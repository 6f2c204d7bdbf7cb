"""The public check of teacher weightings over the package's table, a plug-in's, and wrong ones."""

import pytest

import knot_runner as kr
from knot_runner.config.plugins import load_plugins
from knot_runner.methods.weighting import needs_bias
from knot_runner.testing import check_weighting
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401


@pytest.mark.parametrize("name", kr.WEIGHTINGS)
def test_weighting_of_the_package_conforms(name):
    check_weighting(name)
    check_weighting(kr.WEIGHTINGS[name])


def test_biases_are_found_for_any_weighting_that_may_read_them() -> None:
    assert [name for name in (*kr.WEIGHTINGS, "of a plug-in") if needs_bias(name)] == ["E", "of a plug-in"]


@pytest.mark.usefixtures("tables_restored")
def test_weighting_of_a_plug_in_conforms():
    load_plugins([str(EXAMPLES / "own_weighting.py")])
    check_weighting("M")


WRONG = {
    "instead of": lambda q, shares, biases: q.amax(2).mean(0),
    "negative or not finite": lambda q, shares, biases: q.amax(2) - 0.5,
    "order of the teachers": lambda q, shares, biases: q.amax(2).cumsum(1),
    "other examples": lambda q, shares, biases: q.amax(2) / q.amax((0, 2)),
    "equal teachers": lambda q, shares, biases: q.amax(2).argsort(dim=1).argsort(dim=1) + 1.0,
    "not finite": lambda q, shares, biases: 1 / (q - biases).norm(dim=2),
}


@pytest.mark.parametrize("said", WRONG)
def test_check_finds_a_wrong_weighting(said):
    with pytest.raises(AssertionError, match=said):
        check_weighting(WRONG[said])
