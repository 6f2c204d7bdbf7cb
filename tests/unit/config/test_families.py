"""Tasks, methods, models and trainings of one family fit together; what is not in use does not name a run."""

import pytest

from knot_runner.composing.commands import compose_jobs
from knot_runner.util.errors import UserError


def job(*overrides):
    (made,) = compose_jobs(list(overrides), None)
    return made


@pytest.mark.parametrize(
    "overrides, text",
    [
        (
            ["task=gaussians", "method=fedavg"],
            "method=fedavg: task=gaussians has samples of Gaussians; method=federated_distance",
        ),
        (["task=mnist", "method=federated_distance"], "task=mnist has images; method=fedavg would fit"),
        (["task=sa", "method=temperature_probe"], "task=sa has texts; method=sinkhorn_e would fit"),
        (["task=image_sets", "method=fedavg"], "task=image_sets has sets of images; method=dataset_distance would fit"),
        (
            ["task=gaussians", "model=bert_tiny"],
            "model: task=gaussians trains nothing and has none",
        ),
        (
            ["task=gaussians", "training=chill"],
            "training: task=gaussians trains nothing and has none",
        ),
        (
            ["task=image_sets", "partition=iid"],
            "partition: task=image_sets trains nothing and has none",
        ),
        (["task=mnist_fedwad", "method.clustering.graph=sparse0"], "'sparse0' is not one of none, affinity, sparse3"),
        (["task=mnist_fedwad", "method.clustering.clusters=0"], "clusters: 0 is not at least 1"),
        (["task=mnist_fedwad", "method.clustering.otdd.fedwad.t=1.5"], "neither 'random' nor between 0 and 1"),
        (["task=gaussians", "method.fedwad.support=0"], "method.fedwad.support: 0 is not at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(overrides, text):
    with pytest.raises(UserError) as problem:
        job(*overrides)
    assert text in str(problem.value) and "\n" not in str(problem.value)


def same(first, second):
    return job(*first).run_id == job(*second).run_id


def test_settings_that_are_not_read_are_no_part_of_the_run_id():
    clustered = ["task=mnist_fedwad"]
    none = [*clustered, "method.clustering.graph=none"]
    support, scale = "method.clustering.otdd.fedwad.support=50", "method.clustering.scale=9000"
    assert same(none, [*none, support]) and not same(clustered, [*clustered, support])
    assert not same(clustered, none) and not same(clustered, [*clustered, scale])
    exact = ["task=image_sets", "method.otdd.solver=exact"]
    assert same(exact, [*exact, "method.otdd.fedwad.iterations=3"])
