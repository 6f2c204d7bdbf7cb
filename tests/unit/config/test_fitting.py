"""Which methods run on which tasks, and what is chosen for them where nobody typed it."""

import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import Misfit
from knot_runner.config.settings.families import FAMILIES, family_of

#: One method of every family.
ONE_OF = {
    "federated": "fedavg", "distil": "kd", "distillation": "entropy_a", "coreset": "coreset", "knn": "coreset_knn",
    "matrix": "dataset_distance", "distance": "federated_distance", "probe": "temperature_probe",
}  # fmt: skip


def test_every_family_has_its_method_here():
    homes = {"federated_distance": "gaussians"}
    for family, method in ONE_OF.items():
        (job,) = compose_jobs([f"task={homes.get(method, 'mnist')}", f"method={method}"], None)
        assert family_of(job.method).name == family
    assert set(ONE_OF) == set(FAMILIES)


@pytest.mark.parametrize("kind, task", [("texts", "erc"), ("images", "mnist"), ("gaussians", "gaussians")])
def test_a_family_takes_the_kinds_of_task_that_it_names(kind, task):
    """The table that ls prints; of every family one method on one task of the kind."""
    for family, method in ONE_OF.items():
        words = [f"task={task}", f"method={method}"]
        if kind in FAMILIES[family].tasks:
            compose_jobs(words, None)
        else:
            with pytest.raises(Misfit, match=f"method={method}: task={task} has"):
                compose_jobs(words, None)


def test_what_nobody_chose_is_chosen_to_fit_and_said(caplog):
    caplog.set_level("INFO", logger="knot_runner")
    (job,) = compose_jobs(["task=erc", "method=fedavg_chill"], None)
    assert (job.settings.training.name, job.settings.partition.kind) == ("texts", "natural")
    assert "training=texts partition=natural: chosen for method=fedavg_chill on task=erc" in caplog.text
    (job,) = compose_jobs(["task=cifar10", "method=sinkhorn_e"], None)
    assert (job.settings.training.name, job.method.loss["solver"]) == ("image_stages", "tree")


def test_a_training_that_was_deleted_is_one_line(capsys):
    assert main(["task=femnist", "method=fedavg", "~training"]) == 2
    assert "knot-runner: training: is not set; training=NAME chooses one" in capsys.readouterr().err


def test_what_was_typed_stays(caplog):
    caplog.set_level("INFO", logger="knot_runner")
    (job,) = compose_jobs(["task=cifar10", "method=sinkhorn_e", "method.loss.solver=newton"], None)
    assert job.method.loss["solver"] == "newton" and "tree" not in caplog.text
    with pytest.raises(Misfit, match="training=small: is not for method=fedavg; training=texts would fit"):
        compose_jobs(["task=erc", "method=fedavg", "training=small"], None)


def test_one_grid_of_methods_of_both_kinds():
    """KNOT and FedAvg on the same images, by one command."""
    jobs = compose_jobs(["task=mnist", "partition=iid", "method=entropy_a,fedavg"], None)
    assert [job.settings.training.name for job in jobs] == ["image_stages", "chill"]
    assert jobs[0].settings.shares is not None and jobs[1].settings.shares is None
