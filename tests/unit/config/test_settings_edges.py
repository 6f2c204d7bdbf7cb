"""The edges of settings: the last value that is right, and the first that is not, which is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from knot_runner import compose
from knot_runner.config.settings.methods.knot import SinkhornSettings
from knot_runner.config.settings.networks import CnnSettings, ConvSettings, MlpSettings
from knot_runner.config.settings.partition import Pairs
from knot_runner.config.strict import build
from tests.golden.messages import refuses


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """Name -> settings as a run has them."""
    jobs = [["task=erc", "method=entropy_a"], ["task=femnist", "method=soup"],
            ["task=femnist", "method=fedavg", "partition=natural"]]  # fmt: skip
    texts, soup, federated = (compose(words)[0] for words in jobs)
    task = texts.settings.task
    return {
        "task": task, "labels": task.labels, "dataset": task.datasets["MELD"], "model": texts.settings.model,
        "embedded": task.datasets["MELD"].embedded, "soup": soup.method.personalization,
        "mlp": MlpSettings("mlp", "mlp", [4], "logits"), "pairs": Pairs("pairs", 4, [[0, 1], [2, 3]]),
        "cnn": CnnSettings("cnn", "cnn", [ConvSettings(3, 3, 1)], [6], "logits"),
        "training": federated.settings.training, "partition": federated.settings.partition,
        "method": federated.method, "server": federated.method.server, "images": federated.settings.task,
        "loss": SinkhornSettings("sinkhorn", "newton", 1e-3, 1e-6, 0.5),
    }  # fmt: skip


#: of which settings, key, values that are right, values that are not
EDGES = [
    ("training", "rounds", [1], [0]), ("training", "local_epochs", [1], [0]), ("training", "batch_size", [1], [0]),
    ("training", "evaluate_every", [1], [0]),
    ("training", "clients_per_round", [1, 0.01, 0.99, 1.0], [0, 0.0, 1.01, -1]),
    ("training", "lr", [1e-9], [0.0]), ("training", "momentum", [0.0, 0.999], [1.0, -0.1]),
    ("training", "weight_decay", [0.0], [-1e-9]), ("training", "target", [1.0, 1e-9, None], [0.0, 1.0001]),
    ("training", "stop_at_target", [False], [True]),  # there is no target
    ("method", "temperature", [1e-3], [0.0]), ("method", "hard_temperature", [1e-3, None], [0.0]),
    ("server", "lr", [1e-9], [0.0]), ("server", "beta1", [0.0, 0.999], [1.0, -0.1]),
    ("server", "beta2", [0.0, 0.999], [1.0, -0.1]), ("server", "tau", [1e-9], [0.0]),
    ("partition", "num_clients", [1, None], [0]), ("partition", "least", [1], [0]),
    ("partition", "embedded_clients", [1], [0]), ("images", "shape", [[1, 28, 4096]], [[1, 28, 4097]]),
    ("partition", "alpha", [1e-9, 1e6], [0.0, 1.1e6]),
    ("task", "max_length", [8, 512], [7, 513]), ("task", "max_examples", [10, None], [9]),
    ("dataset", "chunk", [[0, 1], [1, 2], None], [[1, 1], [-1, 2], [0], [0, 1, 2]]), ("embedded", "rows", [20], [19]),
    ("embedded", "shares", [[0.0, 0.5, 0.5, 0.0, 0.0]], [[-0.5, 0.5, 0.5, 0.5, 0.0], [0.1, 0.5, 0.5, 0.0, 0.0]]),
    ("labels", "coordinates", [], [[[0.0]]]), ("labels", "names", [], [["a"]]),
    ("soup", "alphas", [[0.5], [0.0, 1.0]], [[]]), ("mlp", "hidden", [[], [1]], [[0], [3, 0]]),
    ("cnn", "hidden", [[], [1]], [[0], [3, 0]]), ("cnn", "convs", [], [[]]), ("pairs", "num_clients", [4, 5], [3]),
    ("loss", "solver", ["geomloss", "exact", None], ["sinkhorn"]),
    ("loss", "epsilon", [1e-4], [0.9e-4]), ("loss", "scaling", [1e-3, 0.999], [0.0, 1.0]),
    ("loss", "tolerance", [1e-12, 1e-3], [0.9e-12, 1.1e-3]),
    ("pairs", "groups", [[[0], [1]]], [[[0, 1], []], [[0, 1], [1]], [[0, 1]]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "right", "wrong"), EDGES, ids=[f"{name}.{key}" for name, key, *_ in EDGES])
def test_build_accepts_only_valid_edge_values(parts, name: str, key: str, right: list, wrong: list) -> None:
    plain = dataclasses.asdict(parts[name])
    for value in right:
        build(type(parts[name]), plain | {key: value}, name)
    for value in wrong:
        with refuses():
            build(type(parts[name]), plain | {key: value}, name)
