"""Settings of BERT models, training stages, hardware, paths, additional evaluation and trackers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from knot_runner.config.devices import device_names, is_device
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.settings.sizes import (
    ABOVE_ZERO,
    Depth,
    FractionOrNone,
    Items,
    MaxExamples,
    NotNegative,
    Positive,
    Steps,
    Tokens,
    Units,
    UpToMillion,
    at_least,
    between,
    require_sgd_momentum,
)
from knot_runner.config.strict import SettingsClasses, require
from knot_runner.util.config_yaml import Config

#: Maximum number of bytes of a file or folder name on all common file systems.
LONGEST_NAME = 255


@dataclass
class ModelSettings:
    """A BERT encoder with a classification head."""

    kind: str
    name: str
    #: KNOT's encoder layer (published) or a tanh pooler (plain), read at [CLS]
    head: Literal["published", "plain"]
    #: scratch (random), hub (``hub_id`` at ``revision``), or a folder (relative to ``paths.data_dir``)
    weights: str
    #: train (WordPiece learned from training texts), hub, a tokenizer folder, tokenizer.json, or a vocabulary file
    vocab: str
    #: vocabulary size for ``vocab=train``
    vocab_size: Units
    #: pre-trained encoder on the hub
    hub_id: str
    #: commit hash, or a branch
    revision: str
    #: hidden size
    hidden: Units
    #: Transformer layers
    layers: Annotated[Depth, ABOVE_ZERO]
    #: attention heads; must divide ``hidden``
    heads: Annotated[Depth, ABOVE_ZERO]
    #: feed-forward size
    intermediate: Units
    #: dropout probability
    dropout: FractionOrNone

    def __post_init__(self) -> None:
        require(self.hidden % self.heads == 0, "heads", f"expected a divisor of hidden={self.hidden}, got {self.heads}")


#: ``model.kind`` -> its settings.
MODEL_SETTINGS: SettingsClasses = {**NETWORK_SETTINGS, "bert": ModelSettings}


@dataclass(kw_only=True)
class StageSettings:
    """One stage of a distillation."""

    #: number of epochs
    epochs: Steps
    #: examples per step
    batch_size: Items
    #: learning rate
    lr: Positive
    #: weight decay
    weight_decay: NotNegative
    #: keep the epoch with the best validation score (distillation includes epoch 0), or the last
    select: Literal["best", "last"]
    #: maximum tokens per text; null uses ``task.max_length``
    max_length: Tokens | None = None
    #: maximum training examples, nested for equal seeds; null uses all
    max_examples: MaxExamples | None = None
    #: optimizer
    optimizer: Literal["adamw", "sgd"]
    #: momentum for optimizer=sgd
    momentum: FractionOrNone
    #: epochs after which ``lr`` is multiplied by ``decay``
    milestones: list[Steps] = field(default_factory=list)
    #: learning rate factor
    decay: Positive

    def __post_init__(self) -> None:
        require_sgd_momentum(self.optimizer, self.momentum)
        rising = sorted(set(self.milestones))
        require(self.milestones == rising, "milestones", f"expected increasing epochs, got {self.milestones}")


@dataclass
class CentralTraining:
    """Training stages of a distillation with centralized examples."""

    name: str
    #: training of local models or teachers
    local: StageSettings
    #: distillation of the student
    distill: StageSettings


@dataclass
class TrainingSettings(CentralTraining):
    """Training stages of a distillation between parties."""

    #: training of the global model on the server's data
    pretrain: StageSettings


@dataclass
class HardwareSettings:
    """Device and execution. Run IDs of federated runs depend on ``engine`` and ``precision``."""

    name: str
    #: device name such as cuda:1, or auto
    device: str
    #: torch threads per process; affects summation order
    threads: Annotated[int, between(1, 1024)]
    #: parallel processes for independent models, clients and large LEAF files; 0: one per core
    num_workers: Annotated[int, between(0, 1024, " (0: one per core)")]
    #: engine for clients: loop (reference), lean (CPU processes) or stacked (all clients in one program); auto: lean on
    #: CPU, stacked on CUDA, loop for text and custom models
    engine: Literal["auto", "loop", "lean", "stacked"]
    #: precision of federated training; tf32 and bf16 need engine=stacked on CUDA
    precision: Literal["float32", "float64", "tf32", "bf16"]
    #: stacked: maximum clients at once; 0: all
    stack: Annotated[UpToMillion, at_least(0, " (0: all clients of a round)")]
    #: devices that jobs of a sweep use in turn; empty uses ``device``
    devices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key, names in (("device", [self.device]), ("devices", self.devices)):
            for name in names:
                require(is_device(name), key, f"unknown device {name[:40]!r} (choose from {', '.join(device_names())})")


@dataclass
class PathSettings:
    """Folders of data and output."""

    #: root for ``task.source=local``; defaults to the variable KNOT_DATA
    data_dir: str | None
    #: folder for runs and reports
    output_dir: str

    def __post_init__(self) -> None:
        require(self.output_dir != "", "output_dir", "expected a folder ('.' is the current one), got an empty string")
        for key in ("data_dir", "output_dir"):
            path = Path(getattr(self, key) or "").expanduser()
            longest = max(map(len, map(os.fsencode, path.parts)), default=0)
            require(longest <= LONGEST_NAME, key, f"a name has {longest} bytes, more than the limit of {LONGEST_NAME}")
            if getattr(self, key):
                setattr(self, key, str(path))


@dataclass
class EvaluateSettings:
    """Additional evaluation after training."""

    #: end: evaluate every client model on every client's test examples after the last round
    matrix: Literal["end"] | None = None


#: ``tracker.name`` -> the extra that installs the tracker's package; "" if none is needed. Plug-ins add trackers.
TRACKER_EXTRAS = {"none": "", "wandb": "", "tensorboard": "tensorboard"}


@dataclass
class TrackerSettings:
    """Experiment tracker, in addition to local records."""

    name: str
    #: Weights & Biases project
    project: str
    #: Weights & Biases mode; offline folders can be synced later
    mode: Literal["offline", "online"]
    #: group of the run; null uses the preset or task/method
    group: str | None = None
    #: additional tags
    tags: list[str] = field(default_factory=list)
    #: options of a custom tracker
    options: Config = field(default_factory=dict)
