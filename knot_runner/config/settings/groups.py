"""Settings of model, training, hardware, paths and tracker: one dataclass per config group."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from knot_runner.config.settings.sizes import Depth, Items, Parties, Steps, Width
from knot_runner.config.strict import require
from knot_runner.util.errors import nearest

#: Bytes of one name in a path, on all file systems in use.
LONGEST_NAME = 255


@dataclass
class ModelSettings:
    """BERT encoder and head. ``per_party`` overrides any key for one data set's local model (unlike architectures)."""

    kind: Literal["bert"]
    name: str
    head: Literal["published", "plain"]
    #: scratch = random start; hub = ``hub_id`` at ``revision``; else a folder (from ``paths.data`` unless absolute)
    weights: str
    #: train = a WordPiece vocabulary learnt on the task's train texts; hub; else a vocab.txt or its folder
    vocab: str
    vocab_size: Width
    hub_id: str
    revision: str
    hidden: Width
    layers: Depth
    heads: Depth
    intermediate: Width
    dropout: float
    per_party: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("vocab_size", "hidden", "layers", "heads", "intermediate"):
            require(getattr(self, key) > 0, key, f"{getattr(self, key)} is not above 0")
        require(self.hidden % self.heads == 0, "heads", f"{self.heads} does not divide hidden={self.hidden}")
        require(0 <= self.dropout < 1, "dropout", f"{self.dropout} is not in [0, 1)")
        allowed = {"hidden", "layers", "heads", "intermediate", "dropout", "head"}
        for party, changes in self.per_party.items():
            for key in changes:
                require(key in allowed, f"per_party.{party}.{key}", f"cannot differ per party{nearest(key, allowed)}")


@dataclass
class StageSettings:
    """One training stage (AdamW, constant rate)."""

    epochs: Steps
    batch: Items
    lr: float
    weight_decay: float
    #: the epoch whose weights are kept: the best on the valid part (of distillation, epoch 0 may be), or the last
    select: Literal["best", "last"] = "best"
    #: tokens of the texts that the stage trains and selects on, at most; null = ``task.max_length``
    max_length: int | None = None

    def __post_init__(self) -> None:
        right = self.max_length is None or 8 <= self.max_length <= 512
        require(right, "max_length", f"{self.max_length} is outside 8..512 (BERT's positions); null = task.max_length")
        require(self.epochs >= 1, "epochs", f"{self.epochs} is not at least 1")
        require(self.batch >= 1, "batch", f"{self.batch} is not at least 1")
        require(self.lr > 0, "lr", f"{self.lr} is not above 0")
        require(self.weight_decay >= 0, "weight_decay", f"{self.weight_decay} is negative")


@dataclass
class TrainingSettings:
    """How long and how fast each stage trains; ``local_`` etc. follow the stages of the KNOT pipeline."""

    name: str
    local: StageSettings
    pretrain: StageSettings
    distil: StageSettings


@dataclass
class HardwareSettings:
    """Where it runs. Of it, only ``engine`` and ``precision`` are in the run id, and only in federated runs."""

    name: str
    device: str
    #: torch threads per process; 1 keeps numbers the same under every launcher
    threads: int
    #: processes that train independent models (or clients) side by side; 0 = one per core
    workers: int
    #: what trains clients: loop (the reference), lean (worker processes, CPU), stacked (the cohort as one program);
    #: auto = lean on a CPU, stacked on a GPU
    engine: Literal["auto", "loop", "lean", "stacked"] = "auto"
    #: of federated training; tf32 and bf16 for CUDA only
    precision: Literal["float32", "float64", "tf32", "bf16"] = "float32"
    #: stacked: clients trained together, at most; 0 = the whole cohort
    stack: Parties = 0
    #: of a sweep: its jobs take these in turn (cuda:0, cuda:1, ...); none = all are given ``device``
    devices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(1 <= self.threads <= 1024, "threads", f"{self.threads} is not in 1..1024")
        require(0 <= self.workers <= 1024, "workers", f"{self.workers} is not in 0..1024; 0 = one per core")
        require(self.stack >= 0, "stack", f"{self.stack} is negative; 0 = the whole cohort")


@dataclass
class PathSettings:
    """Folders. ``data``: the root that ``task.source=local`` reads; ``out``: where runs are written."""

    data: str | None
    out: str

    def __post_init__(self) -> None:
        for key in ("data", "out"):
            path = Path(getattr(self, key) or "")
            require("\0" not in str(path), key, "has a character 0, which no path may have")
            longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
            require(longest <= LONGEST_NAME, key, f"has a name of {longest} bytes; file systems take {LONGEST_NAME}")


@dataclass
class TrackerSettings:
    """Mirror of the local records. ``none`` or ``wandb``; the local records stay the truth."""

    name: Literal["none", "wandb"]
    project: str = "knot_runner"
    mode: Literal["offline", "online"] = "offline"
    group: str | None = None
