"""Settings of model, training, hardware, paths and tracker: one dataclass per config group."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from knot_runner.config.devices import device_names, is_device
from knot_runner.config.plugins import Table, load_plugins
from knot_runner.config.settings.sizes import (
    ABOVE_ZERO,
    Depth,
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    Width,
)
from knot_runner.config.strict import AtMost, Holds, require
from knot_runner.util.errors import nearest

#: Bytes of one name in a path, on all file systems in use.
LONGEST_NAME = 255


@dataclass
class ModelSettings:
    """BERT encoder and head. ``per_party`` overrides any key for one data set's local model (unlike architectures)."""

    kind: Literal["bert"]
    name: str
    #: published = KNOT's encoder layer over the last hidden state, read at [CLS]; plain = tanh pooler at [CLS]
    head: Literal["published", "plain"]
    #: scratch = random start; hub = ``hub_id`` at ``revision``; else a folder (from ``paths.data_dir`` unless absolute)
    weights: str
    #: train = a WordPiece vocabulary learned on the task's train texts; hub; else a folder, whose own tokenizer is
    #: used, a tokenizer.json, or a file of word pieces
    vocab: str
    #: word pieces of ``vocab=train``
    vocab_size: Annotated[Width, ABOVE_ZERO]
    #: the pre-trained encoder on the hub
    hub_id: str
    #: its commit hash, or a branch, which is no pin
    revision: str
    #: width of the hidden states
    hidden: Annotated[Width, ABOVE_ZERO]
    #: Transformer layers of the encoder
    layers: Annotated[Depth, ABOVE_ZERO]
    #: attention heads of each layer; they divide ``hidden``
    heads: Annotated[Depth, ABOVE_ZERO]
    #: width of each layer's feed-forward part
    intermediate: Annotated[Width, ABOVE_ZERO]
    #: probability, while training
    dropout: FractionOrNone
    #: data set -> keys of its local model that differ
    per_party: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.hidden % self.heads == 0, "heads", f"{self.heads} does not divide hidden={self.hidden}")
        allowed = {"hidden", "layers", "heads", "intermediate", "dropout", "head"}
        for party, changes in self.per_party.items():
            for key in changes:
                require(key in allowed, f"per_party.{party}.{key}", f"cannot differ per party{nearest(key, allowed)}")


@dataclass(kw_only=True)
class StageSettings:
    """One training stage (by default AdamW at a constant rate)."""

    #: passes over the stage's training examples
    epochs: Steps
    #: examples of a training step
    batch_size: Items
    #: rate, constant but for ``milestones``
    lr: Positive
    #: weight decay of the stage, decoupled with adamw
    weight_decay: NotNegative
    #: the epoch whose weights are kept: the best on the valid part (of distillation, epoch 0 may be), or the last
    select: Literal["best", "last"]
    #: tokens of the texts that the stage trains and selects on, at most; null = ``task.max_length``
    max_length: int | None = None
    #: training examples that it uses, at most (of a seed, a smaller number's are among a larger one's); null = all
    max_examples: Items | None = None
    #: optimizer of the stage
    optimizer: Literal["adamw", "sgd"]
    #: momentum of optimizer=sgd; 0 with adamw
    momentum: FractionOrNone
    #: epochs after each of which the rate is multiplied by ``decay``
    milestones: list[Steps] = field(default_factory=list)
    #: what the rate is multiplied by at each milestone
    decay: Positive

    def __post_init__(self) -> None:
        sgd = self.optimizer == "sgd"
        require(sgd or not self.momentum, "momentum", f"{self.momentum} works only with optimizer=sgd. Use 0")
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        require(rising, "milestones", f"{self.milestones} do not rise")
        require(
            self.max_examples is None or self.max_examples >= 10,
            "max_examples",
            f"{self.max_examples} examples are too few; 10 is the least",
        )
        right = self.max_length is None or 8 <= self.max_length <= 512
        require(right, "max_length", f"{self.max_length} is outside 8..512 (BERT's positions); null = task.max_length")


@dataclass
class TrainingSettings:
    """How long and how fast each stage of a distillation trains."""

    name: str
    #: of the local models, or of the teachers
    local: StageSettings
    #: of the global model on the server's own data
    pretrain: StageSettings
    #: of the student: the distillation itself
    distill: StageSettings


#: ``hardware.engine`` -> the function that makes it (:class:`~knot_runner.engine.federated.choose.EngineInputs`).
ENGINES: Table[str] = Table(
    "ENGINES",
    {name: f"knot_runner.engine.federated.choose:make_{name}" for name in ("loop", "lean", "stacked", "ray")},
)
#: Package of optional engines: ``NAME`` in it is loaded for ``hardware.engine=NAME``.
OPTIONAL_ENGINES = "knot_runner.engines"


def load_engine(name: str) -> None:
    """Load the optional engine ``name``. Raises :class:`UserError` where there is no such engine."""
    if name == "auto" or name in ENGINES:
        return
    if name.isidentifier() and importlib.util.find_spec(f"{OPTIONAL_ENGINES}.{name}") is not None:
        load_plugins([f"{OPTIONAL_ENGINES}.{name}"])
    require(name in ENGINES, "engine", f"there is no engine {name[:40]!r}{nearest(name[:40], ['auto', *ENGINES])}")


@dataclass
class HardwareSettings:
    """Where it runs. Of it, only ``engine`` and ``precision`` are in the run id, and only in federated runs."""

    name: str
    #: a device's name, cuda:1 for another than the first, or auto = a CUDA GPU if there is one, else cpu
    device: str
    #: torch threads per process; 1 keeps numbers the same under every launcher
    threads: Annotated[int, Holds(lambda value: 1 <= value <= 1024, "is not in 1..1024")]
    #: processes that train independent models (or clients) side by side, and read LEAF's large files; 0 = one per core
    #: (engine=ray: of the cluster)
    num_workers: Annotated[int, Holds(lambda value: 0 <= value <= 1024, "is not in 0..1024; 0 = one per core")]
    #: what trains clients: loop (the reference), lean (worker processes, CPU), stacked (the cohort as one program), ray
    #: (lean in actors of a Ray cluster, with its bits and run ids), or a folder of knot_runner/engines;
    #: auto = lean on a CPU, stacked on CUDA (loop for a text model or one of your own), loop elsewhere
    engine: str
    #: of federated training; tf32 and bf16 for engine=stacked on CUDA; float64 where the device has it
    precision: Literal["float32", "float64", "tf32", "bf16"]
    #: stacked: clients trained together, at most; 0 = the whole cohort
    stack: Annotated[int, AtMost(10**6), Holds(lambda value: value >= 0, "is negative; 0 = the whole cohort")]
    #: of a sweep: its jobs take these in turn (cuda:0, cuda:1, ...); none = all are given ``device``
    devices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        load_engine(self.engine)
        for key, names in (("device", [self.device]), ("devices", self.devices)):
            for name in names:
                require(is_device(name), key, f"{name[:40]!r} is none of {', '.join(device_names())}")


@dataclass
class PathSettings:
    """Folders. ``data``: the root that ``task.source=local`` reads; ``out``: where runs are written."""

    #: root of the files that ``task.source=local`` reads; by default the variable ``KNOT_DATA``
    data_dir: str | None
    #: folder that runs, stages and reports are written to
    output_dir: str

    def __post_init__(self) -> None:
        require(self.output_dir != "", "output_dir", "is empty; a folder is right, or . for the current one")
        for key in ("data_dir", "output_dir"):
            path = Path(getattr(self, key) or "").expanduser()
            longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
            require(longest <= LONGEST_NAME, key, f"has a name of {longest} bytes; file systems take {LONGEST_NAME}")
            if getattr(self, key):
                setattr(self, key, str(path))


#: ``tracker.name`` -> the extra of its package, "" where it needs none; plug-ins add others.
TRACKER_EXTRAS = {"none": "", "wandb": "", "tensorboard": "tensorboard", "mlflow": "mlflow"}


@dataclass
class TrackerSettings:
    """Mirror of the local records, which stay the truth: ``none``, ``wandb``, ``tensorboard``, ``mlflow``, or one of a
    plug-in."""

    name: str
    #: project of Weights & Biases, experiment of MLflow
    project: str
    #: of Weights & Biases: offline = a folder that can be sent later
    mode: Literal["offline", "online"]
    #: what runs stand together under; null = the preset, or task/method
    group: str | None = None
    #: words beside task and method that runs are found by
    tags: list[str] = field(default_factory=list)
    #: where MLflow keeps runs, a server or a folder; null = the variable MLFLOW_TRACKING_URI, or MLflow's own choice
    uri: str | None = None
    #: of a tracker of one's own
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = "@" in (self.uri or "")
        require(not named, "uri", "holds a user's name, which records would keep; MLFLOW_TRACKING_URI is right for it")
