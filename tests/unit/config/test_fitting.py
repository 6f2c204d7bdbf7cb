"""Which methods run on which tasks, and what is chosen for them where nobody typed it."""

import pytest

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import Misfit
from knot_runner.config.settings.families import FAMILIES, family_of
from tests.golden.messages import refuses

#: One method of every family.
ONE_OF = {
    "federated": "fedavg", "distill": "kd", "distillation": "entropy_a", "coreset": "coreset", "knn": "coreset_knn",
    "matrix": "dataset_distance", "distance": "federated_distance", "probe": "temperature_probe",
}  # fmt: skip


def test_family_of_covers_every_family():
    homes = {"federated_distance": "gaussians"}
    for family, method in ONE_OF.items():
        (job,) = compose_jobs([f"task={homes.get(method, 'mnist')}", f"method={method}"], None)
        assert family_of(job.method).name == family
    assert set(ONE_OF) == set(FAMILIES)


@pytest.mark.parametrize("kind, task", [("texts", "erc"), ("images", "mnist"), ("gaussians", "gaussians")])
def test_family_accepts_only_its_task_kinds(kind, task):
    for family, method in ONE_OF.items():
        words = [f"task={task}", f"method={method}"]
        if kind in FAMILIES[family].tasks:
            compose_jobs(words, None)
        else:
            with pytest.raises(Misfit, match=f"method={method}: task={task} has"):
                compose_jobs(words, None)


def test_compose_chooses_groups_that_fit(caplog):
    caplog.set_level("INFO", logger="knot_runner")
    (job,) = compose_jobs(["task=erc", "method=fedavg_chill"], None)
    assert (job.settings.training.name, job.settings.partition.kind) == ("texts", "natural")
    assert "training=texts partition=natural: chosen for method=fedavg_chill on task=erc" in caplog.text
    (job,) = compose_jobs(["task=cifar10", "method=sinkhorn_e"], None)
    assert (job.settings.training.name, job.method.loss.solver) == ("image_stages", "tree")
    (job,) = compose_jobs(["task=erc", "method=sinkhorn_e"], None)
    assert job.method.loss.solver == "newton"


def test_compose_refuses_a_deleted_training():
    with refuses():
        compose_jobs(["task=femnist", "method=fedavg", "~training"], None)


def test_compose_keeps_what_was_typed(caplog):
    caplog.set_level("INFO", logger="knot_runner")
    (job,) = compose_jobs(["task=cifar10", "method=sinkhorn_e", "method.loss.solver=newton"], None)
    assert job.method.loss.solver == "newton" and "tree" not in caplog.text
    with pytest.raises(Misfit, match="training=small: is not for method=fedavg; training=texts would fit"):
        compose_jobs(["task=erc", "method=fedavg", "training=small"], None)


def test_compose_accepts_method_grid_across_families():
    jobs = compose_jobs(["task=mnist", "partition=iid", "method=entropy_a,fedavg"], None)
    assert [job.settings.training.name for job in jobs] == ["image_stages", "chill"]
    assert jobs[0].settings.shares is not None and jobs[1].settings.shares is None
