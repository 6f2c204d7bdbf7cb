"""The summary of a distance and of a matrix of distances."""

import numpy as np

from knot_runner.papers.fedwad.results import distance_summary, matrix_summary
from knot_runner.results import result_of
from tests.unit.report.made_runs import distance_result, matrix_result, shown


def summary(result):
    view = distance_summary if result["kind"] == "distance" else matrix_summary
    return shown(view("a title", result_of(result)))


def test_distance_summary_by_hand():
    lines = summary(distance_result(notes=["a [red]note[/red]"])).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[4:7]] == [
        ["federated,", "after", "3", "iterations", "2.2", "+10%", "0.5", "s"],
        ["exact,", "all", "samples", "at", "one", "place", "2", "0.25", "s"],
        ["closed", "form", "of", "the", "distributions", "4", "+100%"],
    ]
    assert [line.rstrip() for line in lines[8:]] == [
        "20 and 20 samples in 2 dimensions; approximate measures of 4 points",
        "a [red]note[/red]",
    ]


def test_distance_summary_of_other_runs():
    text = summary(distance_result(spent={"epsilon": 4.0, "delta": 1e-4}))
    assert "each client has spent epsilon 4, delta 0.0001 in all" in text
    assert "exact measures of 31 points" in summary(distance_result("exact") | {"support": [20, 26, 31]})
    assert "%" not in summary(distance_result(value=0.0, exact=0.0, closed_form=0.0))


def test_matrix_summary_shows_few_sets_as_grid():
    text = summary(matrix_result(notes=["set 9: left out"]))
    assert "set 2" in text and "4.0" in text and "set 9: left out" in text
    line = "exact optimal transport, centralized; 3 pairs of 3 data sets, 50 samples each; 1.5 s"
    assert line in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_matrix_summary_groups_many_clients():
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    far = np.where(np.equal.outer(groups, groups), 10.0, 1000.0) * (1 - np.eye(8))
    text = summary(matrix_result(far.tolist(), groups=groups, solver="federated", sizes=[5] * 4 + [9] * 4))
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert ["in", "one", "planted", "group", "4", "10.0", "10.0", "10.0"] in rows
    assert ["of", "two", "groups", "24", "1,000.0", "1,000.0", "1,000.0"] in rows
    assert "5 to 9 samples each" in text
