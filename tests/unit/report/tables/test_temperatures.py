"""Tables of temperatures: rounds, speed-ups, deltas and rate controls by hand, their cases, and traces."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.metrics import rounds_to_target
from knot_runner.report.tables.build import build_table
from knot_runner.report.tables.chilling import check_target
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.report.claimed import rewrite

ALL = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]


def cell(table: Any, settings: tuple[str, ...], metric: str, case: str = "FEMNIST-DNN") -> Any:
    row = next(row for row in table.rows if row.keys == settings)
    return row.cells[f"{case}: {metric}"][0]


def build(jobs: list[Any], metrics: list[str] = ALL, paper: str | None = "chill/table1", **options: Any) -> Any:
    return build_table(jobs, paper, metrics, kind="temperatures", options=options)


def test_rounds_are_rounds_trained_and_targets_are_paired_by_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("4",), "rounds").mean == pytest.approx((8 + 2) / 2)  # T=4 reaches its own best
    assert cell(table, ("1",), "rounds").mean == pytest.approx((7 + 4) / 2)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx(3)
    assert "rounds: rounds trained until the target is met" in " ".join(table.lines)


def test_the_papers_rounds_stay_as_printed_and_gaps_count_alike(federated: Any) -> None:
    """It prints 299 for T=4, the index of the last of 300 rounds: trained rounds are one more."""
    jobs = [federated.made(4.0, [0.1, 0.2, 0.4], seed=seed) for seed in (0, 1)]
    for job in jobs:  # of the paper's size, so that there is a gap
        rewrite(job.folder, datasets={"train": 157_132, "test": 200})
    found = cell(build(jobs), ("4",), "rounds")
    assert (found.mean, found.paper, found.gap) == (3, 299, 3 - 300)


def test_the_speedup_is_the_mean_of_ratios_per_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("0.05",), "speedup").mean == pytest.approx((7 / 3 + 4 / 3) / 2)
    assert cell(table, ("4",), "speedup").mean == pytest.approx((7 / 8 + 4 / 2) / 2)
    assert (cell(table, ("1",), "speedup").mean, cell(table, ("1",), "speedup").half) == (1, 0)


def test_deltas_are_in_points_and_paired(trio: list[Any]) -> None:
    found = cell(build(trio), ("0.05",), "delta")
    # +10 and +20 points: spread 7.0711, t(1 d.f.) = 12.7062: 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert found.mean == pytest.approx(15) and found.half == pytest.approx(63.531, abs=1e-3)
    assert cell(build(trio), ("1",), "delta").mean == 0


def test_a_number_is_a_target_of_its_own(trio: list[Any]) -> None:
    table = build(trio, target=0.5)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx((4 + 3) / 2)
    assert "Target: accuracy 50%." in " ".join(table.lines)


def test_targets_not_reached_are_shown_said_and_in_no_mean(federated: Any) -> None:
    rows = {4.0: [[0.2, 0.4]] * 3, 1.0: [[0.3, 0.4], [0.1, 0.1], [0.1, 0.2]], 0.5: [[0.1, 0.1]] * 3}
    jobs = [federated.made(t, accs, seed=seed) for t, three in rows.items() for seed, accs in enumerate(three)]
    table = build(jobs)
    some, none = cell(table, ("1",), "rounds"), cell(table, ("0.5",), "rounds")
    assert (some.text, some.mean, some.seeds, some.planned) == (">2 (2 of 3)", 2, 1, 3)
    assert (none.text, none.mean) == (">2", None)
    assert cell(table, ("0.5",), "speedup").mean is None
    assert "FEMNIST-DNN: target not reached within 2 rounds: T=1, seed 1, 2; T=0.5, seed 0, 1, 2." in table.lines


def test_a_target_met_in_the_first_round_takes_one_round(federated: Any) -> None:
    jobs = [federated.made(t, accs) for t, accs in ((4.0, [0.1, 0.4]), (1.0, [0.1, 0.4]), (0.05, [0.5, 0.5]))]
    table = build(jobs)
    assert (cell(table, ("0.05",), "rounds").mean, cell(table, ("0.05",), "speedup").mean) == (1, 2)


@pytest.mark.parametrize(("accuracy", "rounds"), [(0.4, 1), (0.3999, 3), (0.4001, 1)])
def test_a_target_met_exactly_counts(accuracy: float, rounds: int) -> None:
    assert rounds_to_target([(1, accuracy), (2, 0.1), (3, 0.9)], 0.4) == rounds


def test_without_its_t4_run_a_seed_has_no_target(federated: Any, trio: list[Any]) -> None:
    table = build([*trio, federated.made(0.05, [0.9, 0.9], seed=2)])
    assert cell(table, ("0.05",), "rounds").seeds == 2 and cell(table, ("0.05",), "accuracy").seeds == 3
    assert "FEMNIST-DNN: no target, its T=4 run is not there: T=0.05, seed 2." in table.lines


def test_rounds_that_were_not_measured_are_said(federated: Any) -> None:
    jobs = [federated.write(federated.job(t), [0.1, 0.2, 0.3, 0.4], every=2) for t in (4.0, 1.0)]
    table = build(jobs)
    assert cell(table, ("1",), "rounds").mean == 4
    assert "FEMNIST-DNN: not every round was measured, so rounds are upper bounds." in table.lines


def test_rate_controls_are_rows_of_their_own_below_their_temperature(federated: Any) -> None:
    jobs = [
        federated.made(t, [0.1, 0.4], control=control, label=f"method.temperature={t}, method.lr_control={control}")
        for t in (4.0, 1.0, 0.5, 0.05)
        for control in (False, True)
    ]
    table = build(jobs)
    assert table.heads == ("T", "settings")
    assert [row.keys for row in table.rows] == [
        ("4", ""), ("1", "rate=lr/4"), ("1", ""), ("0.5", ""), ("1", "rate=lr/0.5"), ("0.05", ""), ("1", "rate=lr/0.05")
    ]  # fmt: skip
    assert cell(table, ("1", ""), "accuracy").planned == 1  # the control at T=1 is the T=1 run
    assert cell(table, ("1", "rate=lr/0.05"), "accuracy").paper is None


def test_an_accuracy_has_its_interval_between_0_and_100(federated: Any) -> None:
    table = build([federated.made(1.0, [accuracy], seed=seed) for seed, accuracy in enumerate((0.9, 0.98))])
    found = cell(table, ("1",), "accuracy")
    low = 94 - 12.7062 * 4  # spread 8 / sqrt(2), over two seeds
    assert found.half == pytest.approx(50.8248, abs=1e-3) and found.band == (pytest.approx(low, abs=1e-3), 100.0)
    assert cell(table, ("1",), "loss").band[1] > 2  # a loss has no upper end


def test_cases_are_told_by_their_settings(federated: Any) -> None:
    cnn, resnet = ("cnn_mcmahan", "cnn"), ("resnet18", "resnet")
    jobs = [
        federated.made(1.0, [0.5], task="cifar100", model=resnet),
        federated.made(1.0, [0.5], task="cifar10", model=cnn),
        federated.made(1.0, [0.5], task="cifar10", model=resnet),
        federated.made(1.0, [0.5]),
    ]
    table = build(jobs, ["accuracy"])
    names = ["FEMNIST-DNN", "CIFAR10-CNN", "CIFAR100-ResNet18", "cifar10, resnet18"]
    assert [group.block for group in table.groups] == names
    assert [len(block) for block in table.blocks()] == [1] * 4
    assert cell(table, ("1",), "accuracy", "CIFAR10-CNN").paper == 41.34


def test_table_2_tells_partitions_apart(federated: Any) -> None:
    jobs = [
        federated.made(
            t, [0.5], task="cifar10", model=("cnn_mcmahan", "cnn"), partition=kind, label=f"partition={kind}"
        )
        for kind in ("dirichlet", "iid", "centralised")
        for t in (1.0, 0.5)
    ]
    table = build(jobs, ["accuracy", "loss"], "chill/table2")
    assert list(dict.fromkeys(group.block for group in table.groups)) == [
        "centralised iid", "federated iid", "federated non-iid"
    ]  # fmt: skip
    assert table.heads == ("T",)  # the partition is the case, not a setting of the row
    assert cell(table, ("0.5",), "loss", "federated iid").paper == 1.32


def test_other_settings_that_differ_make_other_rows(federated: Any) -> None:
    jobs = [
        federated.made(t, [0.1, accuracy], label=f"training.lr={lr}, training.batch=16")
        for lr, accuracy in ((0.1, 0.5), (0.2, 0.6))
        for t in (4.0, 1.0)
    ]
    table = build(jobs)
    assert [row.keys for row in table.rows] == [
        ("4", "training.lr=0.1"), ("1", "training.lr=0.1"), ("4", "training.lr=0.2"), ("1", "training.lr=0.2")
    ]  # fmt: skip
    assert cell(table, ("4", "training.lr=0.2"), "delta").mean == 0  # against T=1 at the same rate


def test_a_presets_cases_replace_the_papers(federated: Any) -> None:
    table = build([federated.made(1.0, [0.5])], ["accuracy"], cases={"digits": {"task.name": ["femnist", "mnist"]}})
    assert [group.block for group in table.groups] == ["digits"]


def test_two_runs_of_one_cell_are_refused(federated: Any) -> None:
    first = federated.made(1.0, [0.5])
    second = type(first)("other", first.folder, first.task, first.method, first.seed, "", first.config)
    with pytest.raises(ValueError, match="two runs share FEMNIST-DNN, T=1 and seed 0"):
        build([first, second])


def test_runs_that_are_not_federated_are_refused(factory: Any) -> None:
    with refuses():
        build([factory.made()], ["accuracy"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "best"}, "report.target: 'best' is neither best_of_T4 nor"),
        ({"target": 74}, "report.target: 74"),
        ({"cases": {"a": {}}}, "report.cases: each case needs settings"),
    ],
)
def test_wrong_options_say_what_is_right(federated: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build([federated.made(1.0, [0.5])], ["accuracy"], **options)


def test_wrong_columns_and_papers_say_what_is_right(federated: Any) -> None:
    jobs = [federated.made(1.0, [0.5])]
    with refuses():
        build(jobs, ["speed"])
    with refuses():
        build(jobs, ["accuracy"], "knot/table2")


def test_data_of_another_size_have_no_gap(federated: Any) -> None:
    job = federated.write(federated.job(1.0), [0.5], datasets={"train": 5936, "test": 658})
    table = build([job], ["accuracy"])
    assert cell(table, ("1",), "accuracy").gap is None
    assert any("ours are 5,936 training images and 62 classes, the paper's 157,132 and 62" in x for x in table.lines)
    like = build([federated.made(1.0, [0.5], seed=1)], ["accuracy"])
    assert cell(like, ("1",), "accuracy").gap == pytest.approx(50 - 78.66)


def test_diverged_missing_and_damaged_runs(federated: Any) -> None:
    jobs = [federated.made(1.0, [0.5], seed=seed) for seed in range(3)]
    (jobs[1].folder / "rounds.jsonl").write_text('{"round": 0')
    federated.write(jobs[2], [0.5], status="diverged", metrics={}, diverged={"round": 0, "client": "a"})
    table = build([*jobs, federated.job(1.0, seed=3)])
    found = cell(table, ("1",), "accuracy")
    assert (found.mean, found.seeds, found.planned, found.diverged) == (50, 1, 4, 1)
    text = "\n".join(table.lines)
    assert "FEMNIST-DNN T=1: 1 of 4 runs are there (seed 1 damaged; seed 2 diverged; seed 3 not run yet)." in text
    assert (
        f"Not counted: {jobs[1].folder / 'rounds.jsonl'}: does not match its digest in result.json; delete its folder."
        in text
    )


def test_a_target_is_an_accuracy_above_0_and_at_most_1():
    assert check_target(1) == 1.0 and check_target(0.74) == 0.74 and check_target("best_of_T4") == "best_of_T4"
    for wrong in (0, -0.1, 1.01, True, "best"):
        with refuses():
            check_target(wrong)


@pytest.fixture
def mnist(federated: Any) -> list[Any]:
    of_job = {"task": "mnist", "model": ("mlp_notebook", "mlp"), "partition": "dirichlet"}
    accuracies = [round(i / 100, 2) for i in range(1, 51)]
    return [federated.write(federated.job(t, **of_job), accuracies, classes=10) for t in (4.0, 0.25)]


def test_trace_counts_rounds_from_1_as_the_notebook_does(mnist: list[Any]) -> None:
    table = build_table(mnist, "chill/mnist_notebook", ["accuracy"], kind="trace")
    accuracy, loss = table.groups
    assert accuracy.columns == ("acc r1", "acc r10", "acc r20", "acc r30", "acc r40", "acc r50")
    assert loss.columns == ("loss r50",)
    found = [(c.mean, c.paper) for c in table.rows[0].cells["accuracy"]]
    assert found[:2] == [(pytest.approx(1), 4.97), (pytest.approx(10), 21.93)]
    assert table.rows[1].cells["accuracy"][-1].gap == pytest.approx(50 - 92.02)
    assert table.rows[0].cells["loss"][0].mean == pytest.approx(2.5)
    assert len(table.blocks()) == 1 and any("notebook" in line for line in table.lines)


def test_trace_of_a_shorter_run_leaves_its_columns_empty(federated: Any, mnist: list[Any]) -> None:
    job = federated.job(1.0, task="mnist", model=("mlp_notebook", "mlp"))
    federated.write(job, [0.5] * 12, classes=10)
    table = build_table([*mnist, job], "chill/mnist_notebook", [], kind="trace")
    assert [c.mean for c in table.rows[1].cells["accuracy"]] == [50, 50, None, None, None, None]
