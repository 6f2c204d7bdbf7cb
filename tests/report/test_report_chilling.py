"""Tables of temperatures: rounds, speed-ups and deltas worked out by hand, pairs by seed, and what is said of gaps."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.errors import UserError
from knot_runner.report import printed
from knot_runner.report.cases import Setting, grid
from knot_runner.report.chilling import Sweep, course
from knot_runner.report.records_view import load
from knot_runner.report.tables import build_table
from knot_runner.report.verdicts import verdicts

ALL = ["accuracy", "delta", "loss", "rounds", "speedup"]


def cell(table: Any, settings: tuple[str, ...], metric: str, case: str = "FEMNIST-DNN") -> Any:
    row = next(row for row in table.rows if row.keys == settings)
    return row.cells[f"{case}: {metric}"][0]


def build(jobs: list[Any], metrics: list[str] = ALL, paper: str | None = "chill_table1", **options: Any) -> Any:
    return build_table(jobs, paper, metrics, kind="temperatures", options=options)


@pytest.fixture
def trio(federated: Any) -> list[Any]:
    """T=4, 1, 0.05 over two seeds. Targets (best of T=4): .40 and .30. Rounds: T=1 6 and 3, T=0.05 2 and 2."""
    courses = {
        4.0: ([0.1] * 7 + [0.4], [0.1, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]),
        1.0: ([0.1] * 6 + [0.4, 0.5], [0.1, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.4]),
        0.05: ([0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.6], [0.1, 0.2, 0.9, 0.5, 0.5, 0.5, 0.5, 0.6]),
    }
    return [federated.made(t, accs, seed=seed) for t, both in courses.items() for seed, accs in enumerate(both)]


def test_rounds_count_from_0_and_targets_are_paired_by_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("4",), "rounds").mean == pytest.approx((7 + 1) / 2)  # T=4 reaches its own best
    assert cell(table, ("1",), "rounds").mean == pytest.approx((6 + 3) / 2)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx(2)


def test_the_speedup_is_the_mean_of_ratios_per_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("0.05",), "speedup").mean == pytest.approx((6 / 2 + 3 / 2) / 2)
    assert cell(table, ("4",), "speedup").mean == pytest.approx((6 / 7 + 3 / 1) / 2)
    assert (cell(table, ("1",), "speedup").mean, cell(table, ("1",), "speedup").half) == (1, 0)


def test_deltas_are_in_points_and_paired(trio: list[Any]) -> None:
    found = cell(build(trio), ("0.05",), "delta")
    # +10 and +20 points: spread 7.0711, t(1 d.f.) = 12.7062: 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert found.mean == pytest.approx(15) and found.half == pytest.approx(63.531, abs=1e-3)
    assert cell(build(trio), ("1",), "delta").mean == 0


def test_accuracy_is_of_the_last_round_or_of_the_best(trio: list[Any]) -> None:
    assert cell(build(trio), ("0.05",), "accuracy").mean == pytest.approx(60)
    best = build(trio, select="best")
    assert cell(best, ("0.05",), "accuracy").mean == pytest.approx((60 + 90) / 2)
    assert cell(best, ("0.05",), "loss").mean == pytest.approx(3 - 0.75)  # of the same round
    assert "Shown: the round of best accuracy." in " ".join(best.lines)


def test_both_losses_stand_side_by_side_and_only_the_plain_one_is_ranked(trio: list[Any]) -> None:
    table = build(trio, ["loss"])
    assert [group.metric for group in table.groups] == ["loss", "plain_loss"]
    assert [group.better for group in table.groups] == [None, "lower"]
    assert (cell(table, ("1",), "loss").mean, cell(table, ("1",), "plain_loss").mean) == (2.55, 1.55)
    assert not any("target" in line for line in table.lines)


def test_a_number_is_a_target_of_its_own(trio: list[Any]) -> None:
    table = build(trio, target=0.5)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx((3 + 2) / 2)
    assert "Target: accuracy 50%." in " ".join(table.lines)


def test_targets_not_reached_are_shown_said_and_in_no_mean(federated: Any) -> None:
    rows = {4.0: [[0.2, 0.4]] * 3, 1.0: [[0.3, 0.4], [0.1, 0.1], [0.1, 0.2]], 0.5: [[0.1, 0.1]] * 3}
    jobs = [federated.made(t, accs, seed=seed) for t, three in rows.items() for seed, accs in enumerate(three)]
    table = build(jobs)
    some, none = cell(table, ("1",), "rounds"), cell(table, ("0.5",), "rounds")
    assert (some.text, some.mean, some.seeds, some.planned) == (">1 (2 of 3)", 1, 1, 3)
    assert (none.text, none.mean) == (">1", None)
    assert cell(table, ("0.5",), "speedup").mean is None
    rounds = next(group for group in table.groups if group.metric == "rounds")
    assert table.best(rounds, 0) == set()  # T=4 alone has a mean over all its seeds
    assert "FEMNIST-DNN: target not reached within 2 rounds: T=1, seed 1, 2; T=0.5, seed 0, 1, 2." in table.lines


def test_a_target_in_round_0_has_no_speedup(federated: Any) -> None:
    jobs = [federated.made(t, accs) for t, accs in ((4.0, [0.1, 0.4]), (1.0, [0.1, 0.4]), (0.05, [0.5, 0.5]))]
    table = build(jobs)
    assert (cell(table, ("0.05",), "rounds").mean, cell(table, ("0.05",), "speedup").mean) == (0, None)
    assert "FEMNIST-DNN: target reached in round 0, so there is no speed-up: T=0.05, seed 0." in table.lines


def test_without_its_t4_run_a_seed_has_no_target(federated: Any, trio: list[Any]) -> None:
    table = build([*trio, federated.made(0.05, [0.9, 0.9], seed=2)])
    assert cell(table, ("0.05",), "rounds").seeds == 2 and cell(table, ("0.05",), "accuracy").seeds == 3
    assert "FEMNIST-DNN: no target, its T=4 run is not there: T=0.05, seed 2." in table.lines


def test_rounds_that_were_not_measured_are_said(federated: Any) -> None:
    jobs = [federated.write(federated.job(t), [0.1, 0.2, 0.3, 0.4], every=2) for t in (4.0, 1.0)]
    table = build(jobs)
    assert cell(table, ("1",), "rounds").mean == 3
    assert "FEMNIST-DNN: not every round was measured, so rounds are upper bounds." in table.lines


# ------------------------------------------------------------------------------------------------------- rate control


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


def test_verdicts_in_words(federated: Any) -> None:
    reached = {(4.0, False): (6, 6, 6), (1.0, False): (6, 6, 6), (0.05, False): (2, 2, 2), (0.05, True): (3, 4, 5)}
    jobs = [
        federated.made(t, [0.1] * first + [0.5] * (8 - first), seed=seed, control=control)
        for (t, control), firsts in reached.items()
        for seed, first in enumerate(firsts)
    ]
    lines = build(jobs).lines
    assert "FEMNIST-DNN: T=0.05 reaches the target 3.00 ± .00 times as fast as T=1 (3 seeds)." in lines
    # 1, 2, 3 rounds more: spread 1, t(2 d.f.) = 4.30265: 4.30265 / sqrt(3) = 2.484
    assert (
        "FEMNIST-DNN: T=1 at rate lr/0.05 reaches the target in 4.0 ± 2.5 rounds: +2.0 ± 2.5 against T=0.05 (3 seeds): "
        "undecided, the interval covers no difference."
    ) in lines
    assert any(line.startswith("FEMNIST-DNN: accuracy of T=0.05 less that of T=1: .00 ± .00 points") for line in lines)


def sweep_of(federated: Any, firsts: dict[Setting, tuple[int, ...]]) -> Sweep:
    jobs = [
        federated.made(key.temperature, [0.1] * n + [0.5] * (60 - n), seed=seed, control=key.control)
        for key, rounds in firsts.items()
        for seed, n in enumerate(rounds)
    ]
    rows = grid(load(jobs), {})["femnist, femnist_dnn"]
    return Sweep({key: {s: course(run, "final") for s, run in seeds.items()} for key, seeds in rows.items()}, 0.5)


@pytest.mark.parametrize(
    ("control", "end"),
    [
        ((20, 21), "so T=0.05 is the faster."),
        ((1, 2), "so the larger rate alone is the faster."),
        ((9,), "(1 seed): undecided, one seed has no interval."),
    ],
)
def test_what_the_larger_rate_explains(federated: Any, control: tuple[int, ...], end: str) -> None:
    firsts = {Setting(1.0): (40, 41), Setting(0.05): (10, 11), Setting(0.05, True): control}
    assert end in verdicts("case", sweep_of(federated, firsts), aimed=True)[-1]


def test_no_pair_of_seeds_is_said(federated: Any) -> None:
    firsts = {Setting(1.0): (40,), Setting(0.05): (10,), Setting(0.05, True): (60,)}
    lines = verdicts("case", sweep_of(federated, firsts), aimed=True)
    assert lines[-1] == "case: T=1 at rate lr/0.05 and T=0.05 have no seed in which both reach the target."


# ------------------------------------------------------------------------------------------------------- cases


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
    table = build(jobs, ["accuracy", "loss"], "chill_table2")
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
    with pytest.raises(UserError, match="erc sinkhorn_e: is not federated"):
        build([factory.made()], ["accuracy"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "best"}, "report.target: 'best' is neither best_of_T4 nor"),
        ({"target": 74}, "report.target: 74"),
        ({"select": "last"}, "report.select: 'last' is neither final nor best"),
        ({"cases": {"a": {}}}, "report.cases: each case needs settings"),
    ],
)
def test_wrong_options_say_what_is_right(federated: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build([federated.made(1.0, [0.5])], ["accuracy"], **options)


def test_wrong_columns_and_papers_say_what_is_right(federated: Any) -> None:
    jobs = [federated.made(1.0, [0.5])]
    with pytest.raises(UserError, match="no metric 'speed' "):
        build(jobs, ["speed"])
    with pytest.raises(UserError, match="knot_table2 cannot stand beside a table of kind temperatures"):
        build(jobs, ["accuracy"], "knot_table2")


# ------------------------------------------------------------------------------------------------- beside the paper


def test_slips_are_marked_where_they_stand(federated: Any) -> None:
    jobs = [
        federated.made(t, [0.1, 0.5], task=task, model=model)
        for task, model in (("femnist", ("femnist_dnn", "mlp")), ("cifar100", ("resnet18", "resnet")))
        for t in (1.0, 0.05)
    ]
    table = build(jobs)
    slip = cell(table, ("0.05",), "delta", "CIFAR100-ResNet18")
    assert (slip.paper, slip.mark) == (-2.72, "a")
    assert cell(table, ("0.05",), "speedup", "CIFAR100-ResNet18").mark == "b"
    assert cell(table, ("0.05",), "accuracy", "FEMNIST-DNN").mark == "c"
    assert cell(table, ("1",), "delta", "CIFAR100-ResNet18").mark == ""
    text = "\n".join(table.lines)
    assert "a: CIFAR100-ResNet18, T=0.05: printed -2.72 is against T=0.5 (29.77); against T=1 it is -1.20." in text
    assert "b: CIFAR100-ResNet18, T=0.05: printed .74; 200 / 239 is .84." in text


def test_slips_of_cases_that_are_not_shown_are_not_told(federated: Any) -> None:
    lines = build([federated.made(1.0, [0.5])], ["rounds"]).lines
    assert not any(line.startswith(("a: ", "b: ")) for line in lines)


def test_the_papers_order_is_counted(federated: Any) -> None:
    # the paper: 73.60 < 77.20 < 78.66; ours has T=1 lowest: 1 of 3 pairs
    jobs = [federated.made(t, [0.1, a]) for t, a in ((4.0, 0.5), (2.0, 0.6), (1.0, 0.4))]
    lines = build(jobs, ["accuracy"]).lines
    assert "FEMNIST-DNN: pairs of temperatures in the paper's order: accuracy 1 of 3." in lines


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
    assert f"Not counted: {jobs[1].folder / 'rounds.jsonl'}: is damaged; delete its folder." in text


def test_scikit_learns_digits_are_not_called_text(federated: Any) -> None:
    lines = build([federated.write(federated.job(1.0), [0.5], source="embedded")], ["accuracy"]).lines
    assert any(line.startswith("scikit-learn's handwritten digits (task.source=embedded): ") for line in lines)


# ------------------------------------------------------------------------------------------------------- trace


@pytest.fixture
def mnist(federated: Any) -> list[Any]:
    of_job = {"task": "mnist", "model": ("mlp_notebook", "mlp"), "partition": "dirichlet"}
    accuracies = [round(i / 100, 2) for i in range(1, 51)]
    return [federated.write(federated.job(t, **of_job), accuracies, classes=10) for t in (4.0, 0.25)]


def test_trace_counts_rounds_from_1_as_the_notebook_does(mnist: list[Any]) -> None:
    table = build_table(mnist, "chill_mnist_notebook", ["accuracy"], kind="trace")
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
    table = build_table([*mnist, job], "chill_mnist_notebook", [], kind="trace")
    assert [c.mean for c in table.rows[1].cells["accuracy"]] == [50, 50, None, None, None, None]


def test_trace_of_several_cases_is_refused(federated: Any, mnist: list[Any]) -> None:
    with pytest.raises(UserError, match="of one task and model; these runs are of MNIST; femnist, femnist_dnn"):
        build_table([*mnist, federated.made(1.0, [0.5])], "chill_mnist_notebook", [], kind="trace")
    with pytest.raises(UserError, match="kind trace needs the printed table beside it \\(chill_mnist_notebook\\)"):
        build_table(mnist, None, [], kind="trace")


def test_printed_tables_keep_the_papers_arithmetic() -> None:
    """Deltas and speed-ups follow from accuracies and rounds, but for the two slips and rounding."""
    table = printed.read("chill_table1")
    wrong = []
    for case, rows in table["values"].items():
        accuracy, _, _, rounds, _ = rows[1.0]
        for t, row in rows.items():
            wrong += [(case, t, "delta")] if abs(row[0] - accuracy - row[1]) > 0.0151 else []
            wrong += [(case, t, "speedup")] if abs(rounds / row[3] - row[4]) > 0.0101 else []
    assert wrong == [("CIFAR100-ResNet18", 0.05, "delta"), ("CIFAR100-ResNet18", 0.05, "speedup")]
