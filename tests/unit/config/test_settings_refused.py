"""Settings at the last value that is right, and values that are wrong by themselves or beside others: one line each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import CnnSettings, ConvSettings, MlpSettings
from knot_runner.config.settings.partition import Pairs
from knot_runner.config.strict import build
from tests.golden.messages import refuses

MLP = MlpSettings("mlp", "mlp", [4], "logits")
CNN = CnnSettings("cnn", "cnn", [ConvSettings(3, 3, 1)], [6], "logits")
PAIRS = Pairs("pairs", 4, [[0, 1], [2, 3]])


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """Name -> settings as a run has them."""
    (texts,) = compose_jobs(["task=erc", "method=entropy_a"], None)
    (soup,) = compose_jobs(["task=femnist", "method=soup"], None)
    task = texts.settings.task
    return {
        "task": task, "labels": task.labels, "dataset": task.datasets["MELD"], "model": texts.settings.model,
        "embedded": task.datasets["MELD"].embedded, "soup": soup.method.personalisation,
        "mlp": MLP, "cnn": CNN, "pairs": PAIRS,
    }  # fmt: skip


#: of which settings, key, values that are right, values that are not
CASES = [
    ("task", "max_length", [8, 512], [7, 513]), ("task", "limit", [10, None], [9]),
    ("dataset", "chunk", [[0, 1], [1, 2], None], [[1, 1], [-1, 2], [0], [0, 1, 2]]), ("embedded", "rows", [20], [19]),
    ("embedded", "shares", [[0.0, 0.5, 0.5, 0.0, 0.0]], [[-0.5, 0.5, 0.5, 0.5, 0.0]]),
    ("embedded", "shares", [], [[0.1, 0.5, 0.5, 0.0, 0.0]]), ("labels", "coordinates", [], [[[0.0]]]),
    ("labels", "names", [], [["a"]]),
    ("model", "per_party", [{"MELD": {"hidden": 128}}], [{"MELD": {"vocabulary": 1}}]),
    ("soup", "alphas", [[0.5]], [[]]), ("soup", "alphas", [[0.0, 1.0]], []),
    ("mlp", "hidden", [[], [1]], [[0], [3, 0]]), ("cnn", "hidden", [[], [1]], [[0], [3, 0]]),
    ("cnn", "convs", [], [[]]), ("pairs", "clients", [4, 5], [3]),
    ("pairs", "groups", [[[0], [1]]], [[[0, 1], []], [[0, 1], [1]]]), ("pairs", "groups", [], [[[0, 1]]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "right", "wrong"), CASES)
def test_setting_refuses_the_first_wrong_value(parts, name, key, right, wrong) -> None:
    part = parts[name]
    plain = dataclasses.asdict(part)
    for value in right:
        build(type(part), plain | {key: value}, "x")
    for value in wrong:
        with refuses():
            build(type(part), plain | {key: value}, "x")
