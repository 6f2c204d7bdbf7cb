"""The hub source, with the transport faked: ``datasets.load_dataset`` hands out real data sets made from lists."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from knot_runner.data.load import load_task
from tests.golden.messages import refuses

TEXTS = [f"row {i}" for i in range(20)]
ROWS = {"text": TEXTS, "star": [1.0, 5.0] * 10, "kind": ["x", "x", "y", "y"] * 5, "unread": [0] * 20}


@pytest.fixture
def hub_task(task_dict) -> dict[str, Any]:
    task_dict["source"] = "hub"
    for data in task_dict["datasets"].values():
        data["labels"] = {"1": "bad", "5": "good"}
        columns = {"text": "text", "label": "star"}
        data["hub"] = {"id": "some/stars", "revision": "abc", "splits": {"pool": ["train"]}, "columns": columns}
    return task_dict


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    made: list[tuple] = []

    def load_dataset(identity: str, config: str | None, *, revision: str, split: str) -> datasets.Dataset:
        made.append((identity, config, revision, split))
        return datasets.Dataset.from_dict(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return made


def test_hub_texts_are_of_their_revision(hub_task, make, calls) -> None:
    hub_task["datasets"]["A"]["hub"] |= {"config": "c", "splits": {"train": ["train", "extra"], "test": ["test"]}}
    task = load_task(make(hub_task), None)
    assert calls[:3] == [("some/stars", "c", "abc", s) for s in ("train", "extra", "test")]
    assert [len(part) for part in task.datasets["A"].splits.values()] == [30, 10, 20]
    train = task.datasets["G"].splits["train"]
    assert all((int(text.split()[1]) % 2) == label for text, label in zip(train.texts, train.labels, strict=True))
    assert set(task.datasets["T"].splits["valid"].labels.tolist()) == {-1}


def test_hub_texts_are_filtered(hub_task, make, calls) -> None:
    hub_task["datasets"]["A"]["hub"]["where"] = {"kind": ["y", "elsewhere"]}
    assert sum(len(part) for part in load_task(make(hub_task), None).datasets["A"].splits.values()) == 10


def test_hub_texts_have_class_numbers(hub_task, make, monkeypatch) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "star": datasets.ClassLabel(names=["n", "p"])})
    rows = {"text": [f"row {i}" for i in range(30)], "star": [0, 1, -1] * 10}
    made = datasets.Dataset.from_dict(rows, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    for data in hub_task["datasets"].values():
        data |= {"labels": {"0": "bad", "1": "good"}, "drop": ["-1"]}
    assert sum(len(part) for part in load_task(make(hub_task), None).datasets["A"].splits.values()) == 20
    hub_task["datasets"]["A"]["drop"] = []
    with refuses():
        load_task(make(hub_task), None)


def test_hub_texts_require_source_and_columns(hub_task, make, calls) -> None:
    hub_task["datasets"]["A"]["hub"]["columns"]["label"] = "unred"
    with refuses():
        load_task(make(hub_task), None)
    hub_task["datasets"]["A"]["hub"] = None
    with refuses():
        load_task(make(hub_task), None)


@pytest.mark.parametrize("problem", [ConnectionError("no\nnetwork"), datasets.exceptions.DatasetNotFoundError("x")])
def test_hub_error_is_one_line(hub_task, make, monkeypatch, problem: Exception) -> None:
    def fail(*_, **__) -> None:
        raise problem

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with refuses():
        load_task(make(hub_task), None)


def test_hub_branch_is_reported_once_per_data_set(hub_task, make, calls) -> None:
    for data in hub_task["datasets"].values():
        data["hub"] |= {"revision": "main", "splits": {"pool": ["train", "extra"]}}
    notes = [note for note in load_task(make(hub_task), None).notes if "branch" in note]
    assert len(notes) == 3 and notes[0].startswith("task.datasets.A.hub.revision=main is a branch of some/stars")
