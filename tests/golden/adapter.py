"""The one place that knows today's command words and today's layout of a run's folder.

`numbers.json` describes its runs in neutral terms. A rename of a setting, a method, a file or a metric changes this
module, and neither `numbers.json` nor the test.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import knot_runner as kr
from knot_runner.config.strict import content_of

#: One process and one thread: the order of sums, and so the bits, depends on the number of threads.
MACHINE = ["hardware=cpu", "hardware.threads=1", "hardware.num_workers=1", "paths.data_dir=null"]

#: Neutral word of a setting -> the keys that it sets.
SETTINGS: dict[str, str | list[str]] = {
    # data and partition
    "task": "task",
    "source": "task.source",
    "examples": "task.max_examples",
    "image shape": "task.shape",
    "context utterances": "task.context",
    "label points": "task.geometry",
    "samples": "task.samples",
    "dimension": "task.dimension",
    "partition": "partition",
    "clients": "partition.num_clients",
    "concentration": "partition.alpha",
    "examples of every class": "partition.floor",
    "altered clients": "partition.alter",
    "held-out share": "partition.valid",
    "held-out share of images": "method.valid",
    "unseen clients": "partition.unseen",
    # model
    "model": "model",
    "hidden units": "model.hidden",
    "layers": "model.layers",
    "intermediate units": "model.intermediate",
    "vocabulary size": "model.vocab_size",
    "channels": "model.width",
    "blocks": "model.blocks",
    # training
    "training": "training",
    "rounds": "training.rounds",
    "local epochs": "training.local_epochs",
    "clients per round": "training.clients_per_round",
    "batch size": "training.batch_size",
    "learning rate": "training.lr",
    "momentum": "training.momentum",
    "weight decay": "training.weight_decay",
    "small clients": "training.small_clients",
    "teachers' epochs": "training.local.epochs",
    "teachers' batch size": "training.local.batch_size",
    "teachers' learning rate": "training.local.lr",
    "teachers' selection": "training.local.select",
    "global model's epochs": "training.pretrain.epochs",
    "global model's batch size": "training.pretrain.batch_size",
    "global model's learning rate": "training.pretrain.lr",
    "global model's selection": "training.pretrain.select",
    "student's epochs": "training.distill.epochs",
    "student's batch size": "training.distill.batch_size",
    "student's learning rate": "training.distill.lr",
    "student's selection": "training.distill.select",
    # federated methods
    "method": "method",
    "aggregation": "method.aggregation",
    "batch normalization": "method.batchnorm",
    "server optimizer": "method.server.optimizer",
    "server learning rate": "method.server.lr",
    "proximal weight": "method.mu",
    "temperature": "method.temperature",
    "matching learning rate": "method.lr_control",
    "hard temperature": "method.hard_temperature",
    "temperature schedule": "method.schedule",
    "stragglers": "method.stragglers",
    "head epochs": "method.head_epochs",
    "final head epochs": "method.final_head_epochs",
    "adaptive mixing": "method.adaptive",
    "first soup": "method.start",
    "generator steps": "method.generator.steps",
    "client architectures": "method.models",
    "server distillation epochs": "method.server_distillation.epochs",
    "server distillation batch size": "method.server_distillation.batch_size",
    "first distillation": "method.server_distillation.after",
    "server bias images": "method.server_distillation.bias.images",
    "server transport solver": "method.server_distillation.loss.solver",
    "server transport regularization": "method.server_distillation.loss.epsilon",
    "personalization learning rate": "method.personalization.lr",
    "personalization epochs": "method.personalization.epochs",
    "personalization checkpoints": "method.personalization.checkpoints",
    "personalization rounds": "method.personalization.rounds",
    "personalization steps": "method.personalization.steps",
    "soup weights": "method.personalization.alphas",
    "landscape checkpoints": "method.personalization.between",
    "landscape grid": "method.personalization.grid",
    "cluster graph": "method.clustering.graph",
    "clusters": "method.clustering.clusters",
    "cluster samples": "method.clustering.otdd.samples",
    "cluster support": "method.clustering.otdd.fedwad.support",
    "privacy": "privacy",
    "noise multiplier": "privacy.noise_multiplier",
    "privacy sampling": "privacy.sampling",
    "fleet": "fleet",
    "deadline": "fleet.deadline",
    "dropout of clients": "fleet.dropout",
    "buffer": "fleet.buffer",
    "evaluated matrix": "evaluate.matrix",
    # distillation
    "teacher": "method.teacher",
    "bias texts": "method.bias.texts",
    "bias tokens": "method.bias.tokens",
    "bias images": "method.bias.images",
    "normalized weights": "method.normalize",
    "generalization bound": "method.bound",
    "transport solver": "method.loss.solver",
    "transport regularization": "method.loss.epsilon",
    "hint epochs": "method.schedule.phases.0.epochs",
    "synthesis steps": "method.synthesis.steps",
    "synthetic images": "method.synthesis.images",
    "synthesis batch size": "method.synthesis.batch_size",
    # probe, distances and coresets
    "gradient images": "method.images",
    "boundary images": "method.boundary_images",
    "distance privacy": "method.fedwad.privacy",
    "distance samples": "method.otdd.samples",
    "distance solver": "method.otdd.solver",
    "distance support": "method.otdd.fedwad.support",
    "distance iterations": "method.otdd.fedwad.iterations",
    "coreset epochs": "method.epochs",
    "coreset clients per epoch": "method.participants",
    # hardware
    "engine": "hardware.engine",
    "precision": "hardware.precision",
}

#: Setting -> neutral word of a value -> today's, with the overrides that go with it. Other methods have their names in
#: lower case with underscores; other values are the same.
VALUES = {
    "task": {
        "handwritten characters": "femnist",
        "handwritten digits": "mnist",
        "handwritten digits in planted clusters": "mnist_fedwad",
        "image sets": "image_sets",
        "Gaussians": "gaussians",
        "sentiments": "sa",
        "emotions": "erc",
        "inference": "nli",
    },
    "method": {
        "logit chilling": "fedavg_chill",
        "FedPer with final head epochs": "fedper method.first_head=averaged",
        "local training": "local",
        "proximal fine-tuning": "finetune method.personalization.prox=0.1",
        "label similarity": "fedavg +base/personalization@method.personalization=cossim",
        "loss landscape": "fedavg +base/personalization@method.personalization=landscape",
        "transfer matrix": "fedavg +base/personalization@method.personalization=transfer_matrix",
        "FedDF with Sinkhorn-E": "feddf method.server_distillation.ensemble=each "
        "method.server_distillation.weighting=E base/loss@method.server_distillation.loss=sinkhorn",
        "FedDF with RKD": "feddf +base/term@method.server_distillation.terms.kd=kd "
        "method.server_distillation.terms.kd.weight=1.0 "
        "+base/term@method.server_distillation.terms.rkd=rkd",
        "FedMD with several architectures": "fedmd",
        "FD": "feddistill",
        "mutual learning of parties": "dml_parties",
        "FitNets in two stages": "kd +method.schedule.phases=[{epochs:10,terms:{hint:{weight:1.0}}}]",
        "triplets": "multi_teacher +base/term@method.terms.triplet=triplet",
        "KD by optimal transport": "kd ~method.terms.kd +base/term@method.terms.sinkhorn=sinkhorn",
        "label smoothing": "student_alone method.terms.ce.label_smoothing=0.1",
        "born-again network": "born_again",
        "average of own weights": "self_average",
        "cross-modal distillation": "cross_modal",
        "data-free, generator": "data_free",
        "data-free, batch statistics": "data_free base/synthesis@method.synthesis=statistics method.teacher=vgg4_slim",
        "data-free, records": "data_free base/synthesis@method.synthesis=records",
        "data set distance": "dataset_distance",
        "nearest neighbor in coresets": "coreset_knn",
    },
    "fleet": {"partial work": "phones_partial", "asynchronous": "phones_async"},
    "training": {"texts": "small", "images in stages": "small", "distillation": "small", "FedWaD": "fedwad"},
}

#: Neutral word of a number -> its place in the result. `*` stands for every key of a level, which joins the name.
NUMBERS = {
    "metric": "metrics",
    "best round": "best.round",
    "training examples": "datasets.train",
    "validation": "valid",
    "bytes": "costs.bytes",
    "FLOPs of clients": "costs.client_flops",
    "FLOPs of the server": "costs.server_flops",
    "FLOPs of personalization": "costs.personal_flops",
    "cluster": "clusters.labels",
    "median update norm": "privacy.median_norm",
    "clipped updates": "privacy.clipped",
    "virtual seconds": "fleet.clock",
    "staleness": "fleet.staleness",
    "server loss": "distilled.loss",
    "server gain": "distilled.gain",
    "chosen point": "personalization.chosen",
    "area under the trade-off": "personalization.area",
    "before distillation": "before.*.ALL",
    "teacher": "teachers.*.sd",
    "baseline": "baselines.*.sd",
    "bias": "bias",
    "ratio of a term": "terms.*.ratio",
    "synthesis loss": "synthesis.loss",
    "generalization gap": "bound.gap",
    "federated distance": "value",
    "exact distance": "exact",
    "distance by iteration": "values",
    "spent epsilon": "spent.epsilon",
    "coreset loss": "losses",
}
#: Files of a run's folder that hold its final arrays: weights, clients' measurements, coresets, the probe's arrays.
ARRAYS = ["model.safetensors", "clients.safetensors", "coreset.safetensors", "probe.safetensors"]
#: Arrays that stand in the result.
ARRAYS_IN_RESULT = ["matrix"]


@dataclass(frozen=True)
class Outcome:
    """Numbers of a finished run by neutral names, and its final floating-point arrays, whose order has no meaning."""

    numbers: dict[str, float]
    arrays: list[np.ndarray]

    def entries(self, dtype: type | None = None) -> np.ndarray:
        """Return all entries of all arrays, or of those of `dtype`, from the smallest to the largest.

        The order of their values outlives renamed, reordered and reshaped tensors.
        """
        chosen = [array.ravel() for array in self.arrays if dtype is None or array.dtype == dtype]
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0)


def run(method: str, settings: dict[str, Any], out: Path) -> Outcome:
    """Run the composition that `method` and `settings` describe in neutral words, and return what came of it."""
    finished = kr.run(command(method, settings, out))
    numbers = {}
    for name, place in NUMBERS.items():
        numbers |= dict(_leaves(name, _found(content_of(finished.result), place.split("."))))
    tensors = [load_file(finished.folder / name) for name in ARRAYS if (finished.folder / name).exists()]
    arrays = [array for file in tensors for array in file.values() if np.issubdtype(array.dtype, np.floating)]
    arrays += [np.array(getattr(finished.result, name)) for name in ARRAYS_IN_RESULT if hasattr(finished.result, name)]
    return Outcome(numbers, arrays)


def command(method: str, settings: dict[str, Any], out: Path) -> list[str]:
    """Return the arguments of the run that `method` and `settings` describe in neutral words."""
    words = {"method": method, **settings}
    overrides = []
    for word, value in words.items():
        if value is not None:
            overrides += f"{SETTINGS[word]}={_value(word, value)}".split()
    return [*overrides, *MACHINE, f"paths.output_dir={out}"]


def arithmetic() -> str:
    """Return what decides the bits of float32 on a machine: torch, the CPU's capability and its family and model, by
    which the matrix library chooses its blocks, and a digest of some sums, normal numbers and exponentials."""
    draws = torch.Generator().manual_seed(0)
    matrix = torch.randn(48, 96, generator=draws)
    product = torch.nn.functional.conv2d((matrix @ matrix.T).view(1, 1, 48, 48), matrix[:, :9].reshape(48, 1, 3, 3))
    probed = torch.log_softmax(product, dim=1).numpy().tobytes()
    digest = hashlib.sha256(probed).hexdigest()[:8]
    facts = Path("/proc/cpuinfo")
    cpu = re.findall(r"^(?:cpu family|model)\s*: (\d+)", facts.read_text(), re.MULTILINE)[:2] if facts.exists() else []
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()} {'/'.join(cpu)}, arithmetic {digest}"


def _value(word: str, value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_value('', item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_value("", item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value in VALUES.get(word, {}):
        return VALUES[word][value]
    return value.lower().replace(" ", "_").replace("-", "_") if word == "method" else str(value)


def _found(result: Any, place: list[str]) -> Any:
    """Return what lies at `place` of `result`; None if there is nothing."""
    if not place or result is None:
        return result
    first, *rest = place
    if first == "*":
        return {key: _found(value, rest) for key, value in result.items()}
    return _found(result.get(first), rest)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}/{key}", item)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(f"{name}/{at}", item)
    elif value is not None:
        yield name, value
