"""Tables of temperatures: rounds, speed-ups, deltas and rate controls by hand, their cases, and traces."""

import csv
import io

import pytest

from knot_runner.report.claims.measures import check_target
from knot_runner.report.render.markup import table_csv, table_latex, table_markdown
from knot_runner.report.render.terminal import TerminalTable
from tests.golden.messages import refuses
from tests.unit.report.made_runs import build_table, shown

ALL = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]
CNN, RESNET = ("cnn_mcmahan", "cnn"), ("resnet18", "resnet")


def build(jobs, metrics=ALL, paper="chill/table1", **options):
    return build_table(jobs, paper, metrics, kind="temperatures", **options)


def cell(table, settings, metric, case="FEMNIST-DNN"):
    row = next(row for row in table.rows if row.keys == settings)
    return row.cells[f"{case}: {metric}"][0]


def means(table, metric, *temperatures):
    return [cell(table, (temperature,), metric).mean for temperature in temperatures]


def test_cells_by_hand(trio):
    table = build(trio)
    # rounds trained, to the target of the T=4 run of the same seed, which reaches its own best
    assert means(table, "rounds", "4", "1", "0.05") == pytest.approx([(8 + 2) / 2, (7 + 4) / 2, 3])
    # the mean of ratios per seed
    assert means(table, "speedup", "4", "1", "0.05") == pytest.approx([(7 / 8 + 4 / 2) / 2, 1, (7 / 3 + 4 / 3) / 2])
    assert means(table, "accuracy", "4", "1", "0.05") == pytest.approx([25, 45, 60])  # of the last round
    assert means(table, "delta", "4", "1", "0.05") == pytest.approx([-20, 0, 15])
    assert means(table, "loss", "1") == [2.55] and means(table, "plain_loss", "1") == [1.55]
    # +10 and +20 points: spread 7.0711, t(1 d.f.) = 12.7062: 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert cell(table, ("0.05",), "delta").half == pytest.approx(63.531, abs=1e-3)
    assert cell(table, ("1",), "speedup").half == 0
    assert [group.signed for group in table.groups] == [metric == "delta" for metric in ALL]
    assert "rounds: rounds trained until the target is met" in " ".join(table.lines)


def test_rounds_gap_compares_with_trained_rounds(federated):
    """The paper prints 299 for T=4, the index of the last of 300 rounds: trained rounds are one more."""
    facts = {"datasets": {"train": 157_132, "test": 200}}  # of the paper's size, so that there is a gap
    jobs = [federated.write(federated.job(4.0, seed=seed), [0.1, 0.2, 0.4], **facts) for seed in (0, 1)]
    found = cell(build(jobs), ("4",), "rounds")
    assert (found.mean, found.paper, found.gap) == (3, 299, 3 - 300)


def test_target_uses_number_given_by_preset(trio):
    table = build(trio, target=0.5)
    assert means(table, "rounds", "0.05") == pytest.approx([(4 + 3) / 2])
    assert "Target: accuracy 50%." in " ".join(table.lines)


def test_unreached_targets_appear_but_enter_no_mean(federated):
    rows = {4.0: [[0.2, 0.4]] * 3, 1.0: [[0.3, 0.4], [0.1, 0.1], [0.1, 0.2]], 0.5: [[0.1, 0.1]] * 3}
    jobs = [federated.made(t, accs, seed=seed) for t, three in rows.items() for seed, accs in enumerate(three)]
    table = build(jobs)
    some, none = cell(table, ("1",), "rounds"), cell(table, ("0.5",), "rounds")
    assert (some.text, some.mean, some.n, some.planned) == (">2 (2 of 3)", 2, 1, 3)
    assert (none.text, none.mean) == (">2", None)
    assert means(table, "speedup", "0.5") == [None]
    assert "FEMNIST-DNN: target not reached within 2 rounds: T=1, seed 1, 2; T=0.5, seed 0, 1, 2." in table.lines


def test_target_met_in_first_round_takes_one_round(federated):
    jobs = [federated.made(t, accs) for t, accs in ((4.0, [0.1, 0.4]), (1.0, [0.1, 0.4]), (0.05, [0.5, 0.5]))]
    table = build(jobs)
    assert means(table, "rounds", "0.05") == [1] and means(table, "speedup", "0.05") == [2]


def test_seed_without_t4_run_has_no_target(federated, trio):
    table = build([*trio, federated.made(0.05, [0.9, 0.9], seed=2)])
    assert cell(table, ("0.05",), "rounds").n == 2 and cell(table, ("0.05",), "accuracy").n == 3
    assert "FEMNIST-DNN: no target, since its T=4 run is missing: T=0.05, seed 2." in table.lines


def test_rounds_that_were_not_measured_are_reported(federated):
    table = build([federated.write(federated.job(t), [0.1, 0.2, 0.3, 0.4], every=2) for t in (4.0, 1.0)])
    assert means(table, "rounds", "1") == [4]
    assert "FEMNIST-DNN: not every round was evaluated, so the numbers of rounds are upper bounds." in table.lines


def test_rate_controls_are_rows_below_their_temperature(federated):
    label = "method.temperature={}, method.lr_control={}".format
    jobs = [
        federated.made(t, [0.1, 0.9 if control else 0.4], control=control, label=label(t, control))
        for t in (4.0, 1.0, 0.5, 0.05)
        for control in (False, True)
    ]
    table = build(jobs)
    assert table.heads == ("T", "settings")
    assert [row.keys for row in table.rows] == [
        ("4", ""), ("1", "rate=lr/4"), ("1", ""), ("0.5", ""), ("1", "rate=lr/0.5"), ("0.05", ""), ("1", "rate=lr/0.05")
    ]  # fmt: skip
    assert cell(table, ("1", ""), "accuracy").planned == 1  # the control at T=1 is the T=1 run
    assert cell(table, ("0.5", ""), "rounds").mean == 2  # to the 0.4 of T=4, whose control has 0.9
    assert cell(table, ("1", "rate=lr/0.05"), "accuracy").paper is None


def test_accuracy_interval_stays_within_0_and_100(federated):
    table = build([federated.made(1.0, [accuracy], seed=seed) for seed, accuracy in enumerate((0.9, 0.98))])
    found = cell(table, ("1",), "accuracy")
    low = 94 - 12.7062 * 4  # spread 8 / sqrt(2), over two seeds
    assert found.half == pytest.approx(50.8248, abs=1e-3) and found.band == (pytest.approx(low, abs=1e-3), 100.0)
    assert cell(table, ("1",), "loss").band[1] > 2  # a loss has no upper end


def test_cases_are_told_by_their_settings(federated):
    places = ({"task": "cifar100", "model": RESNET}, {"task": "cifar10", "model": CNN},
              {"task": "cifar10", "model": RESNET}, {})  # fmt: skip
    table = build([federated.made(1.0, [0.5], **place) for place in places], ["accuracy"])
    names = ["FEMNIST-DNN", "CIFAR10-CNN", "CIFAR100-ResNet18", "cifar10, resnet18"]
    assert [group.block for group in table.groups] == names
    assert [len(block) for block in table.blocks()] == [1] * 4
    assert cell(table, ("1",), "accuracy", "CIFAR10-CNN").paper == 41.34
    own = build([federated.made(1.0, [0.5])], ["accuracy"], cases={"digits": {"task.name": ["femnist", "mnist"]}})
    assert [group.block for group in own.groups] == ["digits"]  # of the preset, in place of the paper's


def test_table_2_tells_partitions_apart(federated):
    jobs = [
        federated.made(t, [0.5], task="cifar10", model=CNN, partition=kind, label=f"partition={kind}")
        for kind in ("dirichlet", "iid", "centralized")
        for t in (1.0, 0.5)
    ]
    table = build(jobs, ["accuracy", "loss"], "chill/table2")
    blocks = list(dict.fromkeys(group.block for group in table.groups))
    assert blocks == ["centralized iid", "federated iid", "federated non-iid"]
    assert table.heads == ("T",)  # the partition is the case, not a setting of the row
    assert cell(table, ("0.5",), "loss", "federated iid").paper == 1.32


def test_temperatures_table_compares_rows_with_own_t1(federated):
    jobs = [
        federated.made(t, [0.1, accuracy], label=f"training.lr={lr}, training.batch_size=16")
        for lr, accuracy in ((0.1, 0.5), (0.2, 0.6))
        for t in (4.0, 1.0)
    ]
    table = build(jobs)
    assert [row.keys for row in table.rows] == [(t, f"training.lr={lr}") for lr in (0.1, 0.2) for t in ("4", "1")]
    assert cell(table, ("4", "training.lr=0.2"), "delta").mean == 0


def test_temperatures_table_refuses_two_runs_per_cell(federated):
    first = federated.made(1.0, [0.5])
    second = type(first)("other", first.folder, first.task, first.method, first.seed, "", first.config)
    with pytest.raises(ValueError, match="two runs share FEMNIST-DNN, T=1 and seed 0"):
        build([first, second])


def test_request_that_fits_no_table_is_refused(federated, factory):
    jobs = [federated.made(1.0, [0.5])]
    for request in ({"target": "best"}, {"target": 74}, {"cases": {"a": {}}}, {"metrics": ["speed"]},
                    {"paper": "chill/mnist_notebook"}, {"jobs": [factory.made()]}):  # fmt: skip
        with refuses():
            build(**({"jobs": jobs, "metrics": ["accuracy"]} | request))


def test_check_target_refuses_accuracies_outside_0_to_1():
    assert check_target(1) == 1.0 and check_target(0.74) == 0.74 and check_target("best_of_T4") == "best_of_T4"
    for wrong in (0, -0.1, 1.01, True, "best"):
        with refuses():
            check_target(wrong)


def test_data_of_another_size_have_no_gap(federated):
    few = build([federated.write(federated.job(1.0), [0.5], datasets={"train": 5936, "test": 658})], ["accuracy"])
    like = build([federated.made(1.0, [0.5], seed=1)], ["accuracy"])
    assert cell(few, ("1",), "accuracy").gap is None
    assert any(
        "this task has 5,936 training images and 62 classes, the paper's has 157,132 and 62" in x for x in few.lines
    )
    assert cell(like, ("1",), "accuracy").gap == pytest.approx(50 - 78.66)


def test_temperatures_table_counts_and_names_unusable_runs(federated):
    jobs = [federated.made(1.0, [0.5], seed=seed) for seed in range(3)]
    (jobs[1].folder / "rounds.jsonl").write_text('{"round": 0')
    federated.write(jobs[2], [0.5], status="diverged", metrics={}, diverged={"round": 0, "client": "a"})
    table = build([*jobs, federated.job(1.0, seed=3)])
    found, text = cell(table, ("1",), "accuracy"), "\n".join(table.lines)
    assert (found.mean, found.n, found.planned, found.diverged) == (50, 1, 4, 1)
    assert "FEMNIST-DNN T=1: 1 of 4 runs are finished (seed 1 damaged; seed 2 diverged; seed 3 not run yet)." in text
    assert f"Not counted: {jobs[1].folder / 'rounds.jsonl'}: does not match its checksum" in text


def test_trace_counts_rounds_from_1_like_notebook(federated):
    place = {"task": "mnist", "model": ("mlp_notebook", "mlp")}
    jobs = [
        federated.write(federated.job(t, **place), accuracies, classes=10)
        for t, accuracies in ((4.0, [i / 100 for i in range(1, 51)]), (1.0, [0.5] * 12), (0.25, [0.5] * 50))
    ]
    table = build_table(jobs, "chill/mnist_notebook", ["accuracy"], kind="trace")
    accuracy, loss = table.groups
    assert accuracy.columns == ("acc r1", "acc r10", "acc r20", "acc r30", "acc r40", "acc r50")
    assert loss.columns == ("loss r50",) and len(table.blocks()) == 1
    whole, shorter, cold = (row.cells["accuracy"] for row in table.rows)
    assert [(c.mean, c.paper) for c in whole[:2]] == [(pytest.approx(1), 4.97), (pytest.approx(10), 21.93)]
    assert [c.mean for c in shorter] == [50, 50, None, None, None, None]
    assert cold[-1].gap == pytest.approx(50 - 92.02)
    assert table.rows[0].cells["loss"][0].mean == pytest.approx(2.5) and any("notebook" in x for x in table.lines)


@pytest.fixture
def chilled(federated):
    """Four temperatures and a rate control of two cases over three seeds; two seeds of T=2 do not reach the target."""
    rows = {(4.0, False): 0.7, (2.0, False): 0.6, (1.0, False): 0.75, (0.05, False): 0.9, (0.05, True): 0.8}
    jobs = [
        federated.made(t, [0.2, 0.3, top if seed else 0.7], seed=seed, control=control, task=task, model=model)
        for task, model in (("femnist", ("femnist_dnn", "mlp")), ("cifar100", ("resnet18", "resnet")))
        for (t, control), top in rows.items()
        for seed in (0, 1, 2)
    ]
    metrics = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]
    return build_table(jobs, "chill/table1", metrics, kind="temperatures")


@pytest.mark.parametrize(("width", "lines"), [(80, 3), (140, 2)])
def test_blocks_of_temperatures_fit_and_look_alike(chilled, width, lines):
    """Mean, interval and paper stand below each other, or the first two together."""
    text = shown(TerminalTable(chilled), width)
    assert max(map(len, text.splitlines())) <= width
    blocks = text.split("CIFAR100-ResNet18\n")[:2]
    assert [block[block.index("\n4 ") + 1 : block.index("\n2 ")].count("\n") for block in blocks] == [lines - 1] * 2
    for part in ("FEMNIST-DNN", "rate=lr/0.05", ">3 (2 of 3)", "(-2.72)", "(299)", "vs T=1", "+10.00"):
        assert part in text
    assert "nan" not in text


def test_table_of_temperatures_in_every_form(chilled):
    markdown, latex, rows = (
        table_markdown(chilled),
        table_latex(chilled),
        list(csv.DictReader(io.StringIO(table_csv(chilled)))),
    )
    assert "**FEMNIST-DNN**" in markdown and "| T | settings | accuracy | vs T=1 |" in markdown
    assert "| 1 | rate=lr/0.05 |" in markdown and "&gt;3 (2 of 3) (205)" in markdown
    assert latex.count(r"\begin{tabular}{llrrrrrr}") == 2 and r"\textgreater{}3 (2 of 3)" in latex
    assert len(rows) == 5 * 6 * 2
    control = next(row for row in rows if row["settings"] == "rate=lr/0.05" and row["metric"] == "accuracy_percent")
    assert (control["T"], control["column"], control["mean"], control["paper"]) == ("1", "FEMNIST-DNN", "76.666667", "")
    beyond = next(row for row in rows if row["T"] == "2" and row["metric"] == "rounds")
    assert (beyond["mean"], beyond["seeds"], beyond["planned"], beyond["gap"]) == ("3", "1", "3", "")
