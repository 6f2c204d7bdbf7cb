"""Which methods run on which tasks, and what is chosen for them where nobody typed it."""

import dataclasses
import re

import pytest

from knot_runner import compose
from knot_runner.config.settings.families import FAMILIES, family_of
from knot_runner.config.settings.groups import TrainingSettings
from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.util.config_yaml import config_folder
from knot_runner.util.errors import Misfit
from tests.golden.messages import refuses
from tests.of_papers import of_papers

#: One method of every family.
ONE_OF = {
    "federated": "fedavg", "distill": "kd", "distillation": "entropy_a", "coreset": "coreset", "knn": "coreset_knn",
    "matrix": "dataset_distance", "distance": "federated_distance", "probe": "temperature_probe",
}  # fmt: skip


@pytest.mark.paper("chill", "fedwad")
def test_family_of_covers_every_family():
    homes = {"federated_distance": "gaussians"}
    for family, method in ONE_OF.items():
        (job,) = compose([f"task={homes.get(method, 'mnist')}", f"method={method}"])
        assert family_of(job.method).name == family
    assert set(ONE_OF) == set(FAMILIES)


@pytest.mark.parametrize("kind, task", of_papers([("texts", "erc"), ("images", "mnist"), ("gaussians", "gaussians")]))
def test_family_accepts_only_its_task_kinds(kind, task):
    for family in FAMILIES:
        method = ONE_OF[family]
        words = [f"task={task}", f"method={method}"]
        if kind not in FAMILIES[family].tasks:
            pair = f"method={method} and task={task}"
            with pytest.raises(Misfit, match=f"{pair} cannot be combined: the method does not support a task that"):
                compose(words)


def test_null_is_filled_in():
    """From the other settings, in this order: partition, solver, teacher, FedRep's head epochs."""
    settings = compose(["task=erc", "method=fedavg_chill", "partition.num_clients=3"])[0].settings
    assert (settings.partition.kind, settings.partition.num_clients) == ("natural", 3)
    places = ["method.loss=sinkhorn", "method.terms.sinkhorn.weight=1"]
    for task, solver, teacher in (("cifar10", "tree", "cnn_16"), ("erc", "newton", "bert_mini")):
        (job,) = compose([f"task={task}", "method=sinkhorn_e", places[0]])
        assert job.method.loss.solver == solver
        (job,) = compose([f"task={task}", "method=kd", places[1]])
        assert job.method.terms["sinkhorn"].solver == solver
        assert [own.name for own in job.method.teachers] == [teacher]
    for epochs in (2, 7):
        (job,) = compose(["task=mnist", "method=fedrep", f"training.local_epochs={epochs}"])
        assert job.method.head_epochs == epochs - 1


def test_null_is_filled_in_for_privacy(caplog):
    caplog.set_level("INFO", logger="knot_runner")
    for model, batchnorm in (("resnet8", "frozen"), ("cnn_8", "averaged")):
        words = ["task=mnist", "method=fedavg", f"model={model}"]
        (plain,), (private,) = compose(words), compose([*words, "privacy=user_level"])
        assert (plain.method.aggregation, plain.method.batchnorm) == ("weighted", "averaged")
        assert (private.method.aggregation, private.method.batchnorm) == ("uniform", batchnorm)
    notes = [record.message for record in caplog.records]
    assert notes.count("method.aggregation=uniform: chosen for privacy") == 2
    with refuses():
        compose([*words, "privacy=user_level", "method.aggregation=weighted"])


@pytest.mark.parametrize("size", ["quick", "small"])
def test_a_size_fits_every_kind_of_training(size):
    """Settings of the three kinds, on texts and images; those of an algorithm lie over its kind of task."""
    found = {}
    for task in ("erc", "mnist"):
        others = ("fedrep",) if task == "erc" else ("kd",)
        for method in ("fedavg", "scaffold", "entropy_a", *others):
            (job,) = compose([f"task={task}", f"method={method}", f"training={size}"])
            found[task, method] = job.settings.training
    assert [found["erc", method].optimizer for method in ("fedavg", "fedrep", "scaffold")] == ["adamw", "adamw", "sgd"]
    assert found["erc", "fedrep"].local_epochs == 2 and found["erc", "fedavg"].clients_per_round == 1.0
    assert found["mnist", "scaffold"] == found["mnist", "fedavg"]
    assert found["mnist", "kd"].distill.select == "last" and found["mnist", "entropy_a"].distill.select == "best"
    assert not hasattr(found["mnist", "kd"], "pretrain") and found["erc", "entropy_a"].pretrain.lr == 5e-4


@pytest.mark.parametrize(("task", "size"), of_papers([("gaussians", "quick"), ("image_sets", "small")]))
def test_a_size_goes_with_tasks_that_train_nothing(task, size):
    (plain,), (sized,) = compose([f"task={task}"]), compose([f"task={task}", f"training={size}"])
    assert sized.settings.training is None and sized.run_id == plain.run_id


def test_what_is_typed_lies_over_a_size():
    words = ["task=erc", "method=entropy_a", "training.distill.epochs=3", "training=quick"]
    (typed,), (plain,) = compose(words), compose([words[0], words[1], words[3]])
    assert typed.settings.training.distill.epochs == 3
    assert dataclasses.replace(typed.settings.training.distill, epochs=2) == plain.settings.training.distill
    assert typed.settings.training.local == plain.settings.training.local


def test_interpolations_read_nothing_that_a_size_gives():
    """A block is chosen after they are resolved."""
    texts = {path: path.read_text(encoding="utf-8") for path in config_folder().rglob("*.yaml")}
    read = {path: re.findall(r"\$\{(?:oc\.select:)?([\w.]+)", text) for path, text in texts.items()}
    assert sum(map(len, read.values())) > 10
    for path, keys in read.items():
        assert not [key for key in keys if key.partition(".")[0] == "training"], path


def test_compose_accepts_method_grid_across_families():
    jobs = compose(["task=mnist", "partition=iid", "method=entropy_a,fedavg"])
    assert [type(job.settings.training) for job in jobs] == [TrainingSettings, FederatedTraining]
    assert jobs[0].settings.shares is not None and jobs[1].settings.shares is None
