"""Tables of methods, grids, gains and local models, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.report.render.table_model import METHOD_NAMES, display
from knot_runner.report.tables.build import build_table
from tests.golden.messages import refuses


def cell(table: Any, row: str, group: str, column: str) -> Any:
    """The cell of a row by its first key, or of a data set by its last."""
    found = next(r for r in table.rows if row in (r.keys[0], r.keys[-1]))
    columns = next(g for g in table.groups if g.key == group).columns
    return found.cells[group][columns.index(column)]


def test_rows_and_columns_are_in_the_papers_order(full_grid: Any) -> None:
    table = build_table(list(reversed(full_grid("sa", 1))), "knot/table2", ["f1", "sd"])
    assert [row.keys[0] for row in table.rows] == list(METHOD_NAMES)
    assert [row.heads[0] for row in table.rows][::7] == ["Entropy-A", "Sinkhorn-E"]
    assert [g.key for g in table.groups] == ["f1", "sd"]
    first = table.groups[0]
    assert (first.columns, first.of_global) == (("Cloths", "Toys", "Cell", "Food", "ALL"), ("Food",))


def test_mean_interval_paper_and_gap(factory: Any) -> None:
    jobs = [factory.made(seed=seed, base=base) for seed, base in enumerate((0.38, 0.40, 0.42))]
    found = cell(build_table(jobs, "knot/table3", ["f1"]), "sinkhorn_e", "f1", "MELD")
    assert (found.mean, found.seeds, found.planned) == (pytest.approx(0.40), 3, 3)
    assert found.half == pytest.approx(0.049683, abs=1e-6)
    assert found.paper == 0.38 and found.gap == pytest.approx(0.02)


def test_one_seed_has_a_mean_and_no_interval(factory: Any) -> None:
    found = cell(build_table([factory.made(base=0.4)], "knot/table3", ["f1"]), "sinkhorn_e", "f1", "MELD")
    assert (found.mean, found.half, found.seeds) == (0.4, None, 1)


def test_runs_not_there_are_counted_and_named(factory: Any) -> None:
    jobs = [factory.made(seed=0), factory.job(seed=1), factory.made(seed=2, status="diverged"), factory.job(seed=3)]
    jobs.append(factory.made(seed=4))
    (jobs[-1].folder / "result.json").write_text("{")
    table = build_table(jobs, "knot/table3", ["f1"])
    found = cell(table, "sinkhorn_e", "f1", "MELD")
    assert (found.mean, found.seeds, found.planned, found.diverged) == (0.4, 1, 5, 1)
    text = "\n".join(table.lines)
    assert "Sinkhorn-E: 1 of 5 runs are there (seed 1, 3 not run yet; seed 2 diverged; seed 4 damaged)." in text
    assert f"Not counted: {jobs[-1].folder / 'result.json'}: cannot be read" in text


def test_a_data_set_without_a_run_is_empty_and_all_has_no_gap(factory: Any) -> None:
    names = ["MELD", "DyDa0", "DyDa1", "DyDa2"]
    table = build_table([factory.made(names=names)], "knot/table3", ["f1", "sd"])
    absent, joined = cell(table, "sinkhorn_e", "f1", "IEMOCAP"), cell(table, "sinkhorn_e", "f1", "ALL")
    assert (absent.mean, absent.seeds, absent.paper) == (None, 0, 0.33)
    assert joined.paper == 0.41 and joined.gap is None
    assert any(line.startswith("No run has IEMOCAP: our ALL is over MELD, DyDa0, DyDa1, DyDa2") for line in table.lines)


def test_runs_with_unlike_data_sets_are_flagged(factory: Any) -> None:
    jobs = [factory.made(seed=0), factory.made(seed=1, names=["MELD", "DyDa2"])]
    table = build_table(jobs, "knot/table3", ["f1"])
    assert cell(table, "sinkhorn_e", "f1", "IEMOCAP").seeds == 1
    assert "Not every run has the same data sets, so their ALL differ in meaning." in table.lines


def test_generated_text_is_never_compared(factory: Any) -> None:
    table = build_table([factory.made(source="embedded")], "knot/table3", ["f1"])
    assert all(found.gap is None for row in table.rows for found in row.cells["f1"])
    assert any("embedded" in line for line in table.lines)


def test_settings_set_rows_apart(factory: Any) -> None:
    labels = ("task.labels.support=semantic", "task.labels.support=onehot")
    table = build_table([factory.made(label=label) for label in labels], "knot/table3", ["f1"])
    assert table.heads == ("method", "settings")
    assert [row.keys for row in table.rows] == [("sinkhorn_e", label) for label in labels]


def test_two_runs_of_one_row_and_seed_are_refused(factory: Any) -> None:
    first = factory.made()
    second = type(first)("other", first.folder, first.task, first.method, first.seed)
    with pytest.raises(ValueError, match="share 'sinkhorn_e'"):
        build_table([first, second], None, ["f1"])


def test_without_a_paper_columns_are_those_measured(factory: Any) -> None:
    table = build_table([factory.made("other_method", names=["A", "B"])], None, ["f1"])
    assert table.groups[0].columns == ("A", "B", "ALL") and table.title == "erc: methods"
    assert table.rows[0].heads == ("other_method",) and display("other_method") == "other_method"


@pytest.mark.parametrize(("paper", "metrics"), [
    ("knot/table2", ["f1"]), ("knot_table9", ["f1"]), ("knot/bias", ["f1"]), ("knot/table3", ["f2"]),
])  # fmt: skip
def test_table_wrong_requests(factory: Any, paper: str, metrics: list[str]) -> None:
    with refuses():
        build_table([factory.made()], paper, metrics)


def test_a_grid_has_a_row_per_setting_and_all_alone(factory: Any) -> None:
    labels = [f"training.distil.batch={size}" for size in (16, 32)]
    jobs = [factory.made(label=label, base=base) for label, base in zip(labels, (0.3, 0.4), strict=True)]
    table = build_table(jobs, None, ["f1", "sd"], kind="grid")
    assert len(table.blocks()) == 1 and [group.columns for group in table.groups] == [("ALL",), ("ALL",)]
    assert [row.keys[1] for row in table.rows] == labels
    assert cell(table, labels[1], "f1", "ALL").mean == pytest.approx(0.45)


def test_locals_beside_table_1(factory: Any) -> None:
    jobs = [factory.made(task=task, seed=seed) for task in ("erc", "sa") for seed in (0, 1)]
    table = build_table(jobs, "knot/table1", ["f1"], kind="locals")
    assert [row.keys[0] for row in table.rows] == ["sa"] * 5 + ["erc"] * 6
    train, score = cell(table, "Cell", "sizes", "train"), cell(table, "Cell", "score", "score")
    assert (train.mean, train.paper, train.half) == (1000, 133574, 0)
    assert (score.mean, score.seeds, score.paper) == (0.5, 2, 0.49)
    assert cell(table, "DyDa1", "score", "score").paper == 0.34
    assert cell(table, "DyDa3", "score", "score").mean is None
    assert any("dropped digit" in line for line in table.lines)


def test_locals_use_accuracy_for_inference(factory: Any) -> None:
    table = build_table([factory.made(task="nli")], "knot/table1", ["f1"], kind="locals")
    assert cell(table, "Fic", "score", "score").mean == 0.6


def test_locals_of_one_seed_count_once_over_methods(factory: Any) -> None:
    jobs = [factory.made(method, seed) for method in ("entropy_a", "sinkhorn_e") for seed in (0, 1, 2)]
    found = cell(build_table(jobs, "knot/table1", ["f1"], kind="locals"), "MELD", "score", "score")
    assert (found.seeds, found.planned) == (3, 3)


OPTIONS = {"reference": "entropy_a"}


def teachers(*values: float) -> dict[str, dict[str, float]]:
    rows = {f"teacher {number + 1}": {"f1": value, "sd": 1 - value} for number, value in enumerate(values)}
    return {**rows, "ensemble": {"f1": 0.99, "sd": 0.01}}


def gains_of(table: Any, *keys: str) -> Any:
    (found,) = (one for one in table.rows if one.keys == keys)
    return found.cells


def test_gains_are_paired_by_seed(factory: Any) -> None:
    jobs = [
        *(factory.made("entropy_a", seed, base=base) for seed, base in ((0, 0.3), (1, 0.5), (3, 0.9))),
        *(factory.made("sinkhorn_e", seed, base=base) for seed, base in ((1, 0.58), (0, 0.34), (2, 0.1))),
    ]
    table = build_table(jobs, None, ["f1"], kind="gains", options=OPTIONS)
    gain = gains_of(table, "sinkhorn_e")["gain"][0]
    assert gain.mean == pytest.approx((4 + 8) / 2) and gain.seeds == 2  # seed 2 and 3 have no pair
    assert gains_of(table, "entropy_a")["gain"][0].mean is None
    group = next(one for one in table.groups if one.key == "gain")
    assert group.signed and "less that of entropy_a at the same seed, in points" in group.title


def test_a_label_is_compared_with_its_own_reference(factory: Any) -> None:
    jobs = [
        factory.made(method, 0, label=label, base=base)
        for method, label, base in (
            ("entropy_a", "a", 0.3), ("entropy_a", "b", 0.4), ("sinkhorn_e", "a", 0.5), ("sinkhorn_e", "b", 0.5),
        )
    ]  # fmt: skip
    table = build_table(jobs, None, ["f1"], kind="gains", options=OPTIONS)
    assert gains_of(table, "sinkhorn_e", "a")["gain"][0].mean == pytest.approx(20)
    assert gains_of(table, "sinkhorn_e", "b")["gain"][0].mean == pytest.approx(10)


@pytest.mark.parametrize("metric, wanted", [("f1", 0.8), ("sd", 0.2)])
def test_the_best_teacher_and_not_the_ensemble(factory: Any, metric: str, wanted: float) -> None:
    jobs = [factory.made("entropy_a"), factory.made("sinkhorn_e", baselines=teachers(0.6, 0.8))]
    table = build_table(jobs, None, [metric], kind="gains", options=OPTIONS)
    assert gains_of(table, "sinkhorn_e")["teacher"][0].mean == pytest.approx(wanted)
    assert gains_of(table, "entropy_a")["teacher"][0].mean is None
