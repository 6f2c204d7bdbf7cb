"""Values that papers state, as conf gives them after composing: coordinates of labels, protocols, grids.

Expectations were copied from the papers (for protocols that only public code states: from that code), not from conf.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from knot_runner.composing.commands import compose_all
from knot_runner.report.run_folders import lookup
from knot_runner.util.config_yaml import config_folder, yaml_files
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
#: RepDistiller: CIFAR-100, resnet56 to resnet20, and each term's weight and constants
REPDISTILLER = {
    "training.distill.epochs": 240, "training.distill.batch_size": 64, "training.distill.lr": 0.05,
    "training.distill.momentum": 0.9, "training.distill.weight_decay": 5e-4, "training.distill.decay": 0.1,
    "training.distill.milestones": [150, 180, 210], "training.distill.optimizer": "sgd", "training.local.epochs": 240,
    "task.augment": "crop_flip", "model.blocks": [3, 3, 3], "method.teacher": "resnet56", "method.labeled": 1.0,
}  # fmt: skip
DISTILLED = {
    "kd": {"ce.weight": 0.1, "kd.weight": 0.9, "kd.temperature": 4.0, "kd.temperature_squared": True},
    "fitnets": {"ce.weight": 1.0, "hint.weight": 100.0}, "at": {"at.weight": 1000.0, "at.p": 2.0},
    "sp": {"sp.weight": 3000.0}, "rkd": {"rkd.weight": 1.0, "rkd.distance": 25.0, "rkd.angle": 50.0},
    "pkt": {"pkt.weight": 30000.0}, "crd": {"crd.weight": 0.8, "crd.temperature": 0.07, "crd.negatives": 16384},
    "dkd": {"dkd.alpha": 1.0, "dkd.beta": 8.0, "dkd.temperature": 4.0, "dkd.warmup": 20},
}  # fmt: skip
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
    ("experiment=fedwad/runtime",): {
        "task.covariance": 0.1, "task.offset": 4.0, "method.fedwad.start_scale": 10.0, "method.fedwad.iterations": 20,
        "method.fedwad.t": 0.5,
    },
    ("experiment=fedwad/otdd", "method.otdd.solver=federated"): {
        "method.otdd.fedwad.iterations": 20, "method.otdd.samples": 500, "method.otdd.covariance": "sqrt_frobenius",
        "method.otdd.part": "root_diagonal", "task.shape": [1, 28, 28], "task.mean": [0.1307], "task.std": [0.3081],
    },
    ("experiment=fedwad/matrices",): {"method.otdd.fedwad.t": "random", "partition.num_clients": 20},
    **{
        (f"experiment=fedwad/{name}",): {"method.otdd.fedwad.t": "random", f"method.otdd.{key}": value}
        for name, key, value in (
            ("fig13_iterations", "fedwad.support", 100), ("fig13_support", "fedwad.iterations", 20),
            ("fig14", "fedwad.iterations", 20),
        )
    },
    **{
        (f"experiment=fedwad/table{i}", "method.clustering.graph=affinity"): {
            "task.name": task, "partition.kind": kind, "training.rounds": 10, "training.momentum": 0.5,
            "method.clustering.clusters": 5, "method.clustering.otdd.fedwad.t": "random",
        }
        for i, task, kind in (
            (2, "mnist", "pairs"), (3, "mnist", "shards"), (4, "cifar10", "pairs"), (5, "cifar10", "shards"),
        )
    },
    **{
        ("experiment=fedwad/knn", f"arm={arm}"): {"method.points": points, "method.encoder_share": 0.5}
        for arm, points in (("points_2", 2), ("points_10", 10), ("points_50", 50))
    },
    ("experiment=knot/bound",): {
        "method.normalize": True, "method.loss.solver": "line", "training.distill.epochs": 20,
        "training.distill.select": "last",
    },
    **{
        ("experiment=kd/cifar100", f"arm={arm}"): {
            **REPDISTILLER, **{f"method.terms.{term}": value for term, value in terms.items()},
        }
        for arm, terms in DISTILLED.items()
    },
    ("experiment=soup/gld23k", "arm=slow"): {
        "training.rounds": 3000, "training.clients_per_round": 10, "training.batch_size": 16, "model.norm": "group",
        "model.groups": 8, "task.shape": [3, 224, 224], "method.personalization.lr": 0.0025,
        "method.personalization.slower": 25,
    },
    ("experiment=soup/femnist", "arm=slow"): {"method.personalization.slower": 25},
    ("experiment=federated/privacy_femnist", "method=fedavg_chill", "privacy.noise_multiplier=1"): {
        "training.clients_per_round": 30, "privacy.clip_norm": 0.1, "method.temperature": 0.25, "training.rounds": 60,
    },
    ("task=femnist", "partition=manual"): {
        "partition.num_clients": 100, "partition.mu": 3.0, "partition.sigma": 1.0, "partition.offset": 10,
    },
    ("task=femnist", "partition=natural", "method=fedala"): {
        "method.share": 0.8, "method.rate": 1.0, "method.threshold": 0.1, "method.window": 10,
    },
    ("task=femnist", "method=fedrep"): {"method.head_epochs": 4, "method.aggregation": "uniform"},
    ("experiment=fedwad/knn", "arm=fedper"): {"method.final_head_epochs": 10, "method.aggregation": "uniform"},
}  # fmt: skip


@pytest.mark.parametrize("overrides", PROTOCOLS, ids=" ".join)
def test_protocols(overrides: tuple[str, ...]) -> None:
    made = config(*overrides)
    found = {key: lookup(made, key) for key in PROTOCOLS[overrides]}
    assert found == PROTOCOLS[overrides]


#: Preset of our own questions -> what its notes say that every arm has
OURS = {
    **{f"chill/{task}": "rounds=8 clients_per_round=3 batch_size=16 optimizer=adamw" for task in ("sa", "erc", "nli")},
    **{f"knot/{task}": "local.epochs=20 local.batch_size=32 local.lr=0.001 distill.epochs=20 distill.batch_size=32 "
       "distill.lr=0.001 partition.num_clients=5 partition.alpha=0.5 partition.server=0.1 partition.transfer=0.3"
       for task in ("femnist", "cifar10", "cifar100")},
    "kd/mnist": "local.epochs=12 distill.epochs=14 method.labeled=0.1 task.max_examples=3000",
    "kd/cifar10": "local.epochs=12 distill.epochs=8 method.labeled=0.3 task.max_examples=3000",
    "kd/families": "local.epochs=12 distill.epochs=8 method.labeled=0.3 task.max_examples=3000",
    "kd/fashion": "method.labeled=0.3 task.max_examples=null", "kd/crossmodal": "method.labeled=0.3",
    "kd/temperature": "method.labeled=0.1", "kd/multi": "method.labeled=0.1", "kd/text": "method.labeled=0.3",
    "fedwad/erc": "method.clustering.clusters=3", "fedwad/erc_natural": "method.clustering.clusters=2 rounds=6",
    "federated/feddf_femnist": "rounds=30 clients_per_round=8 local_epochs=10 batch_size=16 lr=0.05 "
    "partition.num_clients=20 partition.transfer=0.2",
    "federated/feddf_terms": "rounds=30 clients_per_round=8 local_epochs=10 lr=0.05 partition.transfer=0.2",
    "federated/feddf_cifar10": "clients_per_round=8 local_epochs=5 batch_size=16 lr=0.05 partition.num_clients=20",
    "federated/fedgen_femnist": "rounds=30 clients_per_round=10 local_epochs=5 lr=0.05 partition.num_clients=20",
    "federated/fedmd_femnist": "clients_per_round=1.0 local_epochs=5 lr=0.05 partition.num_clients=60 "
    "partition.transfer=0.2",
    "federated/fleet_femnist": "rounds=60 clients_per_round=10 local_epochs=5 lr=0.02 target=0.8 model.hidden=[64]",
    "federated/mutual_erc": "task.max_examples=1000 task.context=1",
    "federated/personal_femnist": "clients_per_round=10 local_epochs=5 batch_size=16 lr=0.05 partition.valid=0.2",
    "federated/fedprox": "rounds=20 clients_per_round=5 local_epochs=2 partition.alpha=0.1 partition.num_clients=10",
    "soup/cossim": "rounds=60 clients_per_round=10 local_epochs=5 batch_size=16 lr=0.05 "
    "partition.num_clients=60 partition.classes_per_client=3",
    "soup/lambda": "rounds=60 clients_per_round=10 local_epochs=5 batch_size=16 lr=0.05",
    "soup/femnist": "rounds=100 clients_per_round=10 local_epochs=5 lr=0.05 partition.num_clients=60 "
    "partition.classes_per_client=3 partition.valid=0.2",
    "soup/landscape": "rounds=100 local_epochs=5 lr=0.05 partition.num_clients=60 partition.classes_per_client=3",
    "soup/erc": "rounds=8 clients_per_round=3 partition.valid=0.2",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", OURS)
def test_presets_of_ours_run_what_their_notes_say(name: str) -> None:
    made = config(f"experiment={name}")
    for item in OURS[name].split():
        key, _, value = item.partition("=")
        prefix = "" if key.partition(".")[0] in ("task", "partition", "method", "model") else "training."
        assert lookup(made, prefix + key) == yaml.safe_load(value), key


#: Task -> mean and standard deviation of its channels: of the official training files as commonly published; of USPS
#: the test file; LEAF feeds FEMNIST's pixels as they are; ImageNet's for photographs and for FedWaD's CIFAR-10
CHANNELS: dict[str, tuple[list[float], list[float]]] = {
    "mnist": ([0.1307], [0.3081]), "mnist_fedwad": ([0.1307], [0.3081]), "image_sets": ([0.1307], [0.3081]),
    "fashionmnist": ([0.2860], [0.3530]), "fashionmnist_fedwad": ([0.2860], [0.3530]),
    "kmnist": ([0.1918], [0.3483]), "usps": ([0.2676], [0.3925]), "femnist": ([0.0], [1.0]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "cifar10_fedwad": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "gld23k": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}  # fmt: skip
TASKS = [name for name in yaml_files("task") if name != "folders" and "mean" in config(f"task={name}")["task"]]


@pytest.mark.parametrize("name", TASKS)
def test_data_sets_are_normalized_as_published(name: str) -> None:
    task = config(f"task={name}")["task"]
    assert (task["mean"], task["std"]) == CHANNELS[name]


ENDED = {"method.final_head_epochs": 10, "method.first_head": "averaged"}
SOURCED = re.compile(
    r"#.*(paper|published|(?:authors'|public|earlier|older|later|SA|ERC|FedWaD's) code|notebook|\bcode:)", re.IGNORECASE
)
#: File of conf -> keys on lines whose comment names a source: their value, and what the source has where it differs
SOURCES: dict[str, dict[str, tuple[Any, str]]] = {
    # FedWaD: its paper's sections 4 and D, and its public code
    "base/clustered": {"aggregation": ("uniform", "authors' code")},
    "base/clustering/otdd": {"clusters": (None, "5 (public code"), "scale": ("largest", "public code: 5000,")},
    "base/fedwad": {"t": (0.5, "random: U(0, 1)")},
    "base/otdd": {"covariance": ("sqrt_frobenius", "sigma_frobenius (eq. 14) | sqrt_frobenius (public code)"),
                  "part": ("root_diagonal", "root_diagonal (diag(Sigma^1/2), public code)")},
    **{f"experiment/fedwad/{name}": {"t": ("random", "public code")}
       for name in ("fig13_iterations", "fig13_support", "fig14", "matrices")},
    **{f"experiment/fedwad/table{i}": {"clusters": (5, ""), "fedwad": ({"t": "random"}, "")} for i in (2, 3, 4, 5)},
    "experiment/fedwad/table1": {"clusters": (5, ""), "fedwad": ({"support": 10, "t": "random"}, "t as the paper")},
    "experiment/fedwad/knn": {"fedrep": ({"method": "fedrep", **ENDED}, "FedWaD's public code")},
    "experiment/fedwad/otdd": {"method.otdd.fedwad.support": ("100,500", "n/5 and n")},
    "method/clustered_fedper": {"final_head_epochs": (10, "the head alone"), "first_head": ("averaged", "")},
    "method/clustered_fedrep": {"final_head_epochs": (10, "the head alone"), "first_head": ("averaged", "")},
    "method/fedper": {"first_head": ("own", "averaged (FedWaD's code)")},
    "method/coreset": {"points": (10, ""), "epochs": (1000, ""), "participants": (None, "10 (paper)"),
                       "iterations": (20, "10 or 100")},
    "method/coreset_knn": {"encoder_share": (0.5, "")},
    "method/federated_distance": {"support": (10, "2, 10, 100"), "iterations": (20, "D.1")},
    "task/gaussians": {"samples": (200, "200 (Fig. 3), 10 to 10,000"), "ratio": (1, "1, 3"), "dimension": (2, "2, 50"),
                       "covariance": (0.2, "0.1 for Fig."), "offset": (5.656854249492381, "4 for Fig.")},
    "task/cifar10_fedwad": {"mean": ([0.485, 0.456, 0.406], "ImageNet")}, "task/image_sets": {"mean": ([0.1307], "")},
    # KNOT: eq. 3, sections 4 and 5, appendix D, and its public code
    "base/distill": {"normalize": (False, "Algorithm 1 does, eq. 3 and the public code do not"),
                     "texts": (2000, "paper: 100000,"), "tokens": (200, "512")},
    "base/loss/entropy": {"form": ("kl", "symmetric (public SA code) | cross_entropy (public ERC code, base 2)")},
    "base/loss/sinkhorn": {"epsilon": (0.001, "0.003 and a grid 1e-4..16"), "scaling": (0.5, "0.5 as published")},
    "task/sa": {"max_length": (200, ""), "split": ({"valid": 0.102, "test": 0.198, "seed": 2021}, "66% of it"),
                "support": ("semantic", "hybrid"), "probe": (None, "D.2")},
    "task/erc": {"max_length": (200, "512"), "context": (7, "newest first"), "support": ("semantic", "onehot")},
    "task/nli": {"max_length": (200, ""), "role": ("transfer", "neither rounds nor size")},
    "training/published": {"on_sa": (None, "2048"), "on_erc": (None, "")},
    # FLex&Chill: figures 1 to 3, and its code
    **{f"base/images/cifar{classes}": {"augment": ("none", "crop_flip")} for classes in (10, 100)},
    "method/temperature_probe": {"images": (50000, "all of CIFAR-10"), "boundary_images": (1000, "1,000"),
                                 "shown_class": (4, "paper: 4")},
    "model/resnet18": {"stem": ("cifar", "imagenet = 7x7 stride 2 and max-pooling")},
    # FedDF, FedGen (MNIST), FedMD, FedSoup, MobileNetV2: papers and public code
    "base/feddf": {"ensemble": ("logits", "mean of the clients' logits (paper)"), "steps": (None, "10,000, ended"),
                   "batch_size": (128, ""), "lr": (1e-3, "cosine"), "schedule": ("constant", ""), "check": (100, "")},
    "method/fedgen": {"generator": (None, ""), "alpha": (0.1, "code: 10,"), "beta": (0.1, "code: 10"),
                      "lr": (3e-4, "0.98")},
    "method/feddistill": {"labels": (None, "ours")}, "method/fedsoup": {"start": (0.75, "code: 0.75")},
    "experiment/federated/fedmd_femnist": {"fedmd": (
        {"method": "fedmd", "method.models": ["cnn_8", "cnn_4", "femnist_dnn"], "method.server_distillation.epochs": 1,
         "method.server_distillation.after": 5}, "first")},
    "model/mobilenet_v2_gn": {"norm": ("group", "batch = BatchNorm")},
    # Mean teachers, DAFL, RepDistiller and mdistiller, whose weights are too large for our small networks
    "base/schedule/average": {"decay": (0.99, "published: 0.999")},
    "base/synthesis/generator": {"batch_size": (64, "1024 (CIFAR-10), 512 (MNIST)"), "width": (32, "128"),
                                 "lr": (0.001, "0.02 (CIFAR-10), 0.2 (MNIST)"),
                                 "one_hot": (1.0, "0.05 (CIFAR-10), 1 (MNIST)"),
                                 "activation": (0.1, "0.01 (CIFAR-10), 0.1 (MNIST)")},
    "base/term/at": {"weight": (100.0, "published: 1000")}, "base/term/hint": {"weight": (1.0, "published: 100,")},
    "base/term/crd": {"weight": (0.1, "published: 0.8"), "negatives": (1024, "published: 16384")},
    "base/term/dkd": {"warmup": (0, "published: 20 of 240")}, "experiment/kd/cifar100": {"valid": (0.02, "none")},
}  # fmt: skip
#: File of conf -> values that a comment on a line of its own is about
CONV = {"kernel": 5, "padding": 0}
HEADED: dict[str, dict[str, Any]] = {
    "base/images/femnist": {"holdout": 0.1}, "base/images/mnist": {},
    "base/loss/sinkhorn": {"tolerance": 1e-6},
    "base/otdd": {"samples": 10000}, "encoder/cifar_untrained": {"sizes": [12, 24, 48], "epochs": 0},
    "experiment/chill/mnist_notebook": {"training.rounds": 50},
    "method/coreset": {"samples": 200, "aggregation": "mean"}, "method/coreset_knn": {"points": 10},
    "method/fedala": {"share": 0.8, "rate": 1.0, "threshold": 0.1, "window": 10},
    "method/temperature_probe": {"temperatures": [4, 2, 1, 0.5, 0.25, 0.05], "warm_epochs": 0},
    "model/bert_mini": {"layers": 4, "hidden": 256},
    "model/bert_tiny": {"layers": 2, "hidden": 128, "heads": 2, "intermediate": 512, "head": "published"},
    "model/cnn_chill": {"convs": [{"channels": 10, **CONV}, {"channels": 20, **CONV}], "hidden": [256]},
    "model/cnn_mcmahan": {"convs": [{"channels": 32, "kernel": 5, "padding": 2},
                                    {"channels": 64, "kernel": 5, "padding": 2}], "hidden": [512]},
    "model/femnist_dnn": {"hidden": [512, 256, 128]}, "model/mlp_notebook": {"hidden": [256, 256]},
    "partition/dirichlet": {"num_clients": 50, "alpha": 0.5}, "partition/dirichlet_nofloor": {"floor": 0},
    "partition/manual": {"mu": 3.0, "sigma": 1.0, "offset": 10},
    "task/femnist": {}, "task/mnist": {}, "task/nli": {"split.seed": 2021},  # the first two say whose data they are
    "training/published": {"for_rounds.on_images.rounds": 300},
}  # fmt: skip


def test_values_with_a_source_match_it() -> None:
    found: dict[str, dict[str, Any]] = {}
    headed = set()
    for path in sorted(config_folder().rglob("*.yaml")):
        name = path.relative_to(config_folder()).with_suffix("").as_posix()
        for line in path.read_text().splitlines():
            if not SOURCED.search(line):
                continue
            text, _, comment = line.partition("#")
            if text.strip():
                [(key, value)] = yaml.safe_load(text).items()
                expected, stated = SOURCES.get(name, {}).get(key, (None, ""))
                assert stated in comment, f"{name}: {line}"
                found.setdefault(name, {})[key] = value
            else:
                headed.add(name)
    assert found == {name: {key: row[0] for key, row in rows.items()} for name, rows in SOURCES.items()}
    assert headed == set(HEADED)


@pytest.mark.parametrize("name", [name for name, values in HEADED.items() if values])
def test_values_below_a_source_match_it(name: str) -> None:
    values = yaml.safe_load((config_folder() / f"{name}.yaml").read_text())
    assert {key: lookup(values, key) for key in HEADED[name]} == HEADED[name]


GRAPHS, CLUSTERING = "none,affinity,sparse3,sparse5", "clustered_fedavg,clustered_fedrep,clustered_fedper"
EIGHT = ",".join(f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue")
SIX, FIVE, THREE = "4,2,1,0.5,0.25,0.05", "0,1,2,3,4", "0,1,2"
CHILLED = {"method.temperature": SIX, "method.lr_control": "false,true", "partition": "small,centralized"}
TABLE = {"partition.num_clients": "10,20,40,100", "method.clustering.graph": GRAPHS, "method": CLUSTERING,
         "method.clustering.otdd.fedwad.support": "10,100", "seed": FIVE}  # fmt: skip
SOLVERS = {"method.otdd.solver": "exact,federated", "seed": "0"}
#: Preset -> its grid, but for seeds 0 to 2 and for arms: by the paper, and for questions of our own by conf's notes
GRIDS = {
    **{f"chill/{task}": CHILLED for task in ("sa", "erc", "nli")},
    **{f"chill/fig{i}": {"method.warm_epochs": "0,10", "seed": "0"} for i in (1, 2, 3)},
    "chill/fig4": {"method.temperature": SIX}, "chill/fig6": {"method.temperature": SIX},
    "chill/table1": {"task": "femnist,cifar10,cifar100", "method.temperature": SIX, "method.lr_control": "false,true"},
    "chill/table2": {"partition": "centralized,iid,dirichlet", "method.temperature": SIX},
    "chill/mnist_notebook": {"method.temperature": "4,2,1,0.5,0.25"},
    **{f"knot/table{i}": {"method": EIGHT, "seed": seeds} for i, seeds in ((2, FIVE), (3, FIVE), (4, "0,1"))},
    **{f"knot/{task}": {"method": EIGHT} for task in ("femnist", "cifar10", "cifar100")},
    "knot/table1": {"method": "teachers", "task": "sa,erc,nli", "seed": "0,1"},
    "knot/bias": {"method": "teachers", "seed": "0"},
    "knot/bound": {"method": "sinkhorn_a", "training.distill.max_examples": "250,500,1000,2000,4200"},
    "knot/fig2": {"method": "entropy_e,sinkhorn_e", "seed": "0"},
    "knot/probe": {"method": "entropy_e,sinkhorn_e", "seed": "0"},
    "knot/fig5": {"method": "sinkhorn_e", "seed": "0"}, "knot/fig6": {"method": "sinkhorn_e", "seed": "0"},
    "knot/fig7": {"method": "sinkhorn_e", "task.labels.support": "semantic,onehot", "seed": "0"},
    "knot/fig8": {"method": "sinkhorn_e", "method.loss.epsilon": "0.001,0.003,0.01,0.1,1,10", "seed": "0"},
    "knot/grid": {"method": "sinkhorn_e", "training.distill.batch_size": "16,32,64,128,256,512,1024,2048",
                  "training.distill.lr": "1.0e-4,1.0e-3,1.0e-2,1.0e-1",
                  "method.loss.epsilon": "1.0e-4,1.0e-3,1.0e-2,1.0e-1,1,2,4,8,16", "seed": "0"},
    "fedwad/table1": {"partition.num_clients": "20,40,100", "method.clustering.graph": GRAPHS, "method": CLUSTERING,
                      "task": "mnist_fedwad,cifar10_fedwad", "partition": "pairs,shards", "seed": FIVE},
    **{f"fedwad/table{i}": TABLE for i in (2, 3, 4, 5)},
    "fedwad/toy": {"method.fedwad.mode": "exact,approximate", "method.fedwad.support": "2,10,100,200"},
    "fedwad/runtime": {"method.fedwad.mode": "exact,approximate", "method.fedwad.support": "2,10,100",
                       "task.samples": "10,30,100,300,1000", "task.ratio": "1,3", "task.dimension": "2,50"},
    "fedwad/coreset": {"partition.shards_per_client": "8,2", "method.distance": "exact,federated",
                       "method.fedwad.support": "10,100", "seed": "0"},
    "fedwad/knn": {"partition.num_clients": "10,20,50,100", "seed": "0"},
    "fedwad/otdd": {**SOLVERS, "method.otdd.fedwad.support": "100,500", "method.otdd.fedwad.t": "0.5,random",
                    "seed": THREE},
    "fedwad/fig13_iterations": {**SOLVERS, "method.otdd.fedwad.iterations": "1,2,5,10,20,50"},
    "fedwad/fig13_support": {**SOLVERS, "method.otdd.fedwad.support": "10,50,100,250,500"},
    "fedwad/fig14": {**SOLVERS, "method.otdd.samples": "50,100,200,500", "method.otdd.fedwad.support": "10,100"},
    "fedwad/matrices": {"partition": "pairs,shards", "seed": "0"},
    "fedwad/texts": {"method.otdd.solver": "exact,federated", "method.otdd.features.kind": "tfidf,cls"},
    "fedwad/erc": {"method.clustering.otdd.features.kind": "tfidf,cls",
                   "method.clustering.graph": "none,affinity,sparse3"},
    "fedwad/erc_natural": {"method.clustering.otdd.features.kind": "tfidf,cls",
                           "method.clustering.graph": "none,affinity"},
    "kd/cifar100": {"seed": FIVE}, "kd/crossmodal": {"method.view": "gray,edges,half"},
    "kd/families": {"model": "cnn_8,resnet8_slim", "method.teacher": "cnn_16,resnet8",
                    "method": "student_alone,kd,fitnets,at,rkd,crd"},
    "kd/temperature": {"method.terms.kd.temperature": "1,2,4,8,16",
                       "method.terms.kd.temperature_squared": "true,false"},
    **{f"kd/{name}": {} for name in ("mnist", "fashion", "cifar10", "datafree", "multi", "text")},
    "federated/feddf_femnist": {"partition.alpha": "0.1,1"}, "federated/feddf_cifar10": {"partition.alpha": "0.1,1"},
    "federated/feddf_terms": {"partition.alpha": "0.1,1", "arm": "fedavg,feddf,kd,rkd"},
    "federated/fedgen_femnist": {"method": "fedavg,fedprox,fedgen", "partition.alpha": "0.1,1"},
    "federated/fleet_femnist": {"fleet": "phones,phones_drop,phones_partial,phones_async"},
    "federated/privacy_femnist": {"method": "fedavg,fedavg_chill", "privacy.noise_multiplier": "0,0.3,1"},
    "federated/fedprox": {"seed": FIVE},
    **{f"federated/{name}": {} for name in ("fedmd_femnist", "mutual_erc", "personal_femnist")},
    "soup/cossim": {"partition": "manual_60,natural"}, "soup/lambda": {"partition.alter": "conflict,shift,noise"},
    **{f"soup/{name}": {} for name in ("femnist", "erc", "gld23k", "landscape")},
}  # fmt: skip


@pytest.mark.parametrize("name", {**EXPERIMENTS, **GRIDS})
def test_presets_sweep_the_grid_of_the_paper(name: str) -> None:
    sweep = {key: str(value) for key, value in EXPERIMENTS[name]["sweep"].items()}
    sweep = {key: value for key, value in sweep.items() if key not in ("arms", "method.personalization")}
    assert sweep == {"seed": THREE, **GRIDS[name]}
