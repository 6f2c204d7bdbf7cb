"""The edges of settings: the last value that is right, and the first that is not, which its line names."""

import dataclasses

import pytest

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.strict import build
from tests.golden.messages import refuses

#: key -> values that are right, values that are not.
EDGES = {
    "training.rounds": ([1], [0]), "training.epochs": ([1], [0]), "training.batch": ([1], [0]),
    "training.evaluate_every": ([1], [0]), "training.participants": ([1, 0.01, 0.99, 1.0], [0, 0.0, 1.01, -1]),
    "training.lr": ([1e-9], [0.0]), "training.momentum": ([0.0, 0.999], [1.0, -0.1]),
    "training.weight_decay": ([0.0], [-1e-9]), "training.target": ([1.0, 1e-9, None], [0.0, 1.0001]),
    "method.temperature": ([1e-3], [0.0]), "method.hard_temperature": ([1e-3, None], [0.0]),
    "method.server.lr": ([1e-9], [0.0]), "method.server.beta1": ([0.0, 0.999], [1.0, -0.1]),
    "method.server.beta2": ([0.0, 0.999], [1.0, -0.1]), "method.server.tau": ([1e-9], [0.0]),
    "method.final_head_epochs": ([0], [-1, 1]),  # fedavg has no head of its own
    "partition.clients": ([1, None], [0]), "partition.least": ([1], [0]), "partition.count": ([1], [0]),
    "partition.alpha": ([1e-9, 1e6], [0.0, 1.1e6]),
}  # fmt: skip


@pytest.fixture(scope="module")
def federated():
    (job,) = compose_jobs(["task=femnist", "method=fedavg", "partition=natural"], None)
    return {"training": job.settings.training, "partition": job.settings.partition, "method": job.method}


@pytest.mark.parametrize("key", EDGES)
def test_setting_takes_its_last_right_value_and_no_more(key, federated):
    group, *between, name = key.split(".")
    part = federated[group]
    for one in between:
        part = getattr(part, one)
    plain = dataclasses.asdict(part)
    right, wrong = EDGES[key]
    for value in right:
        build(type(part), plain | {name: value}, group)
    for value in wrong:
        with refuses():
            build(type(part), plain | {name: value}, group)


def test_stop_at_target_needs_a_target(federated):
    training = federated["training"]
    plain = dataclasses.asdict(training)
    build(type(training), plain | {"stop_at_target": True, "target": 0.5}, "training")
    with refuses():
        build(type(training), plain | {"stop_at_target": True, "target": None}, "training")
