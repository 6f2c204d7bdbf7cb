"""Values that papers state, as conf gives them after composing: coordinates of labels, protocols, grids.

Expectations were copied from the papers (for protocols that only public code states: from that code), not from conf.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from knot_runner.composing.commands import compose_all
from knot_runner.report.run_folders import lookup
from knot_runner.util.config_yaml import yaml_files
from tests.of_papers import of_papers
from tests.unit.report.made_runs import LABELS

EXPERIMENTS = {name: yaml.safe_load(path.read_text()) for name, path in yaml_files("experiment").items()}


@cache
def config(*overrides: str) -> dict[str, Any]:
    job = compose_all([*overrides, "seed=0"], first=True)[0][0]
    return job.config


#: KNOT section 4.1: the roles of the data sets (locals, global, transfer); names and coordinates stand in LABELS
ROLES = {
    "sa": (["Cell", "Cloths", "Toys"], ["Food"], ["Grocery"]),
    "erc": (["MELD", "IEMOCAP", "DyDa0", "DyDa1"], ["DyDa2"], ["DyDa3"]),
    "nli": (["Fic", "Gov", "Slate", "Tele", "Trv"], ["SNLI"], ["ANLI"]),
}


@pytest.mark.parametrize("task", ROLES)
def test_label_tasks_follow_the_paper(task: str) -> None:
    chosen, roles = config(f"task={task}")["task"], ROLES[task]
    assert (chosen["labels"]["names"], chosen["labels"]["coordinates"]) == LABELS[task]
    assert chosen["labels"]["support"] == "semantic"
    for role, expected in zip(("local", "global", "transfer"), roles, strict=True):
        assert [name for name, one in chosen["datasets"].items() if one["role"] == role] == expected
    assert chosen["max_length"] == 200 and chosen["context"] == (7 if task == "erc" else 0)
    assert chosen["split"] == {"valid": 0.102, "test": 0.198, "seed": 2021}
    assert chosen["score"] == ("accuracy" if task == "nli" else "f1")


def test_data_file_labels_match_papers() -> None:
    stars = config("task=sa")["task"]["datasets"]["Cell"]["labels"]
    assert [stars[str(star)] for star in range(1, 6)] == LABELS["sa"][0]
    datasets = config("task=erc")["task"]["datasets"]
    numbers = {"0": "no_emotion", "1": "anger", "4": "happiness", "5": "sadness", "6": "surprise"}
    assert {key: datasets["DyDa0"]["labels"][key] for key in numbers} == numbers
    assert [datasets[f"DyDa{i}"]["chunk"] for i in range(4)] == [[i, 4] for i in range(4)]
    codes = config("task=nli")["task"]["datasets"]["ANLI"]["labels"]
    assert [codes[key] for key in ("0", "1", "2", "e", "n", "c")] == LABELS["nli"][0] * 2


def stage(epochs: int, batch: int, lr: float) -> dict[str, Any]:
    steps = {"epochs": epochs, "batch_size": batch, "lr": lr, "weight_decay": 0.01}
    rate = {"optimizer": "adamw", "momentum": 0.0, "milestones": [], "decay": 0.1}
    return {**steps, "select": "best", "max_length": None, "max_examples": None, **rate}


CHILL = {
    "training.rounds": 300, "training.clients_per_round": 10, "training.local_epochs": 10, "training.batch_size": 16,
    "training.lr": 0.001, "training.momentum": 0.0, "training.weight_decay": 0.0, "training.drop_last": False,
    "method.algorithm": "fedavg", "method.aggregation": "weighted", "method.lr_control": False,
}  # fmt: skip
CLUSTERED = {
    "training.rounds": 10, "training.clients_per_round": 0.1, "training.local_epochs": 5, "training.batch_size": 10,
    "training.lr": 0.01, "training.momentum": 0.5, "training.weight_decay": 1e-4, "training.decay_biases": False,
    "method.aggregation": "uniform", "method.clustering.clusters": 5, "method.clustering.otdd.samples": 10000,
    "method.clustering.otdd.covariance": "sqrt_frobenius", "method.clustering.otdd.part": "root_diagonal",
    "method.clustering.otdd.fedwad.iterations": 10, "method.clustering.otdd.fedwad.t": "random",
    "method.clustering.otdd.fedwad.mode": "approximate", "method.clustering.otdd.fedwad.start_scale": 1.0,
    "partition.groups": None,  # pairs of neighboring classes
}  # fmt: skip
KNOT = {
    "method.normalize": False, "method.student_temperature": 1.0, "method.teacher_temperature": 1.0,
    "method.bias.tokens": 200, "model.hub_id": "google/bert_uncased_L-2_H-128_A-2", "model.hidden": 128,
    "model.layers": 2, "model.heads": 2, "model.intermediate": 512, "model.dropout": 0.1, "model.head": "published",
}  # fmt: skip
SINKHORN = {"name": "sinkhorn", "solver": "newton", "epsilon": 0.001, "tolerance": 1e-6, "scaling": 0.5}
#: one job -> what must stand in it
PROTOCOLS: dict[tuple[str, ...], dict[str, Any]] = {
    ("experiment=chill/table1", "task=femnist", "method.temperature=0.05", "method.lr_control=false"): {
        **CHILL, "method.temperature": 0.05, "model.hidden": [512, 256, 128], "model.output": "logits",
    },
    ("experiment=chill/table2", "partition=dirichlet", "method.temperature=1"): {
        **CHILL, "partition.alpha": 0.5, "partition.floor": None, "partition.num_clients": 50, "task.name": "cifar10",
    },
    ("experiment=chill/mnist_notebook", "method.temperature=0.25"): {
        "training.rounds": 50, "training.clients_per_round": 10, "training.local_epochs": 10, "training.batch_size":
        128, "training.drop_last": True, "training.lr": 0.01, "training.weight_decay": 1e-4, "training.momentum": 0.0,
        "training.decay_biases": True, "method.aggregation": "uniform", "partition.num_clients": 100,
        "partition.alpha": 0.5, "partition.floor": 10, "model.hidden": [256, 256], "task.mean": [0.0],
        "task.std": [1.0],
    },
    ("experiment=fedwad/table1", "task=mnist_fedwad", "partition=pairs", "method=clustered_fedrep",
     "partition.num_clients=20", "method.clustering.graph=affinity"): {
        **CLUSTERED, "method.head_epochs": 4, "method.final_head_epochs": 10, "model.hidden": [512, 256, 64],
        "model.output": "softmax", "method.clustering.otdd.fedwad.support": 10, "task.mean": [0.1307],
        "task.std": [0.3081],
    },
    ("experiment=fedwad/table1", "task=cifar10_fedwad", "partition=shards", "method=clustered_fedper",
     "partition.num_clients=20", "method.clustering.graph=sparse3"): {
        **{key: value for key, value in CLUSTERED.items() if key != "partition.groups"},
        "partition.shards_per_client": 2, "method.final_head_epochs": 10, "task.mean": [0.485, 0.456, 0.406],
        "task.std": [0.229, 0.224, 0.225], "task.augment": "crop_flip", "model.hidden": [120, 64],
        "model.convs": [{"channels": 64, "kernel": 5, "padding": 0}] * 2,
        "method.clustering.otdd.encoder.sizes": [12, 24, 48], "method.clustering.otdd.encoder.epochs": 0,
    },
    ("experiment=fedwad/toy", "method.fedwad.mode=approximate", "method.fedwad.support=10"): {
        "method.fedwad.iterations": 20, "method.fedwad.t": 0.5, "method.fedwad.start_scale": 1.0, "task.samples": 200,
        "task.dimension": 2, "task.covariance": 0.2, "task.offset": pytest.approx(32**0.5),
    },
    ("experiment=fedwad/coreset", "partition.shards_per_client=8", "method.distance=exact",
     "method.fedwad.support=10"): {
        "method.points": 10, "method.participants": 10, "method.fedwad.iterations": 20, "partition.num_clients": 100,
    },
    ("experiment=knot/table2", "method=sinkhorn_e"): {**KNOT, "method.weighting": "E", "method.loss": SINKHORN},
    ("experiment=knot/table3", "method=entropy_d"): {
        **KNOT, "method.weighting": "D", "method.loss": {"name": "entropy", "form": "kl"}, "task.name": "erc",
    },
    ("task=sa", "training=published"): {
        "training.local": stage(10, 64, 5e-4), "training.pretrain": stage(5, 2048, 5e-4),
        "training.distill": stage(20, 2048, 1e-3),
    },
    ("task=erc", "training=published"): {
        "training.local": stage(10, 64, 5e-4), "training.pretrain": stage(10, 64, 1e-3),
        "training.distill": stage(20, 128, 1e-3),
    },
    ("task=femnist", "method=fedrep"): {"method.head_epochs": 4, "method.aggregation": "uniform"},
    ("experiment=fedwad/knn", "arm=fedper"): {"method.final_head_epochs": 10, "method.aggregation": "uniform"},
}  # fmt: skip


@pytest.mark.parametrize("overrides", of_papers((overrides,) for overrides in PROTOCOLS), ids=" ".join)
def test_protocols(overrides: tuple[str, ...]) -> None:
    made = config(*overrides)
    found = {key: lookup(made, key) for key in PROTOCOLS[overrides]}
    assert found == PROTOCOLS[overrides]


GRAPHS, CLUSTERING = "none,affinity,sparse3,sparse5", "clustered_fedavg,clustered_fedrep,clustered_fedper"
EIGHT = ",".join(f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue")


@pytest.mark.parametrize(
    ("name", "sweep"),
    of_papers([
        ("chill/table1", {"task": "femnist,cifar10,cifar100", "method.temperature": "4,2,1,0.5,0.25,0.05"}),
        ("chill/table2", {"partition": "centralized,iid,dirichlet", "method.temperature": "4,2,1,0.5,0.25,0.05"}),
        ("chill/mnist_notebook", {"method.temperature": "4,2,1,0.5,0.25"}),
        *((f"knot/table{i}", {"method": EIGHT}) for i in (2, 3, 4)),
        (
            "fedwad/table1",
            {"partition.num_clients": "20,40,100", "method.clustering.graph": GRAPHS, "method": CLUSTERING,
             "task": "mnist_fedwad,cifar10_fedwad", "partition": "pairs,shards", "seed": "0,1,2,3,4"},
        ),
        *(
            (f"fedwad/table{i}", {"partition.num_clients": "10,20,40,100", "method.clustering.graph": GRAPHS,
             "method": CLUSTERING, "method.clustering.otdd.fedwad.support": "10,100", "seed": "0,1,2,3,4"})
            for i in (2, 3, 4, 5)
        ),
        ("knot/grid", {"training.distill.batch_size": "16,32,64,128,256,512,1024,2048"}),
    ]),
)  # fmt: skip
def test_grids(name: str, sweep: dict[str, str]) -> None:
    assert {key: str(EXPERIMENTS[name]["sweep"].get(key)) for key in sweep} == sweep
