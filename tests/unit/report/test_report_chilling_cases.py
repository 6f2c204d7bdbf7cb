"""Which runs make a case, and what stands beside the paper."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.report.chilled import build, cell


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


def test_scikit_learns_digits_are_not_called_text(federated: Any) -> None:
    lines = build([federated.write(federated.job(1.0), [0.5], source="embedded")], ["accuracy"]).lines
    assert any(line.startswith("scikit-learn's handwritten digits (task.source=embedded): ") for line in lines)
