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


@pytest.mark.parametrize("size", ["quick", "small"])
@pytest.mark.parametrize("task", ["gaussians", "image_sets"])
def test_a_size_goes_with_tasks_that_train_nothing(task, size):
    sized = job(f"task={task}", f"training={size}")
    assert sized.settings.training is None and sized.run_id == job(f"task={task}").run_id
