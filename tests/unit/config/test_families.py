"""Tasks, methods, models and trainings of one family fit together; what is not in use does not name a run."""

import pytest

from knot_runner import compose
from tests.golden.messages import refuses


def job(*overrides):
    (made,) = compose(list(overrides))
    return made


@pytest.mark.parametrize("overrides", [
    ["task=gaussians", "method=fedavg"], ["task=mnist", "method=federated_distance"],
    ["task=sa", "method=temperature_probe"], ["task=image_sets", "method=fedavg"],
    ["task=gaussians", "model=bert_tiny"], ["task=gaussians", "training=published"],
    ["task=gaussians", "training=quick", "training.rounds=3"], ["task=femnist", "method=soup", "partition=centralized"],
    ["task=image_sets", "partition=iid"], ["task=mnist_fedwad", "method.clustering.graph=sparse0"],
    ["task=mnist_fedwad", "method.clustering.clusters=0"], ["task=mnist_fedwad", "method.clustering.otdd.fedwad.t=1.5"],
    ["task=gaussians", "method.fedwad.support=0"],
], ids=" ".join)  # fmt: skip
def test_families_refuse_what_does_not_fit(overrides):
    with refuses():
        job(*overrides)


def same(first, second):
    return job(*first).run_id == job(*second).run_id


@pytest.mark.parametrize("size", ["quick", "small"])
@pytest.mark.parametrize("task", ["gaussians", "image_sets"])
def test_a_size_goes_with_tasks_that_train_nothing(task, size):
    assert job(f"task={task}", f"training={size}").settings.training is None
    assert same([f"task={task}"], [f"task={task}", f"training={size}"])


def test_run_id_ignores_settings_of_unused_solver():
    clustered = ["task=mnist_fedwad"]
    none = [*clustered, "method.clustering.graph=none"]
    support, scale = "method.clustering.otdd.fedwad.support=50", "method.clustering.scale=9000"
    assert same(none, [*none, support]) and not same(clustered, [*clustered, support])
    assert not same(clustered, none) and not same(clustered, [*clustered, scale])
    exact = ["task=image_sets", "method.otdd.solver=exact"]
    assert same(exact, [*exact, "method.otdd.fedwad.iterations=3"])
