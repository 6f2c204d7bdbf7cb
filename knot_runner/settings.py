"""Settings: one dataclass per config group, built strictly (:mod:`knot_runner.strict`) from the composed YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from knot_runner.errors import UserError, nearest
from knot_runner.strict import build, digest, rule

__all__ = ["build", "digest", "rule"]  # what a module that defines settings of its own needs

Role = Literal["local", "global", "transfer"]
#: Groups and keys that do not change the numbers, so they are left out of the run id.
NOT_IN_RUN_ID = ("hardware", "tracker", "paths", "sweep", "report")


# --------------------------------------------------------------------------------------------- task


@dataclass
class Labels:
    """The label space: names, one coordinate vector each, and which support the transport cost is measured on."""

    names: list[str]
    coordinates: list[list[float]]
    #: semantic = the coordinates; onehot = every two labels sqrt(2) apart; hybrid = both joined (the public SA code)
    support: Literal["semantic", "onehot", "hybrid"]

    def __post_init__(self) -> None:
        rule(len(self.names) >= 2, "names", "needs at least two labels")
        rule(len(set(self.names)) == len(self.names), "names", f"names repeat: {self.names}")
        rule(
            len(self.coordinates) == len(self.names),
            "coordinates",
            f"{len(self.coordinates)} coordinates for {len(self.names)} labels; one for each is right",
        )
        sizes = sorted({len(point) for point in self.coordinates})
        rule(len(sizes) == 1 and sizes[0] > 0, "coordinates", f"points of unequal length {sizes}; all alike is right")
        points = {tuple(point) for point in self.coordinates}
        rule(len(points) == len(self.names), "coordinates", "two labels share one point, so their cost would be 0")


@dataclass
class File:
    """One file, relative to ``paths.data``; ``where`` keeps only rows whose columns have these values."""

    path: str
    where: dict[str, Any] = field(default_factory=dict)
    #: rows the whole file has; another number found is an error. null = not known
    rows: int | None = None


@dataclass
class Columns:
    """Which columns (or JSON keys) hold what."""

    text: str
    label: str | None = None
    #: second sentence of a pair (NLI)
    pair: str | None = None
    #: dialogue id; rows of one dialogue, in file order, give each other context (ERC)
    dialogue: str | None = None


@dataclass
class LocalSource:
    """A data set on disk. ``files`` has train / valid / test, or ``pool`` (cut by ``split``), or ``heldout`` (halved
    into valid and test)."""

    format: Literal["csv", "jsonl", "dailydialog"]
    files: dict[str, list[File]]
    columns: Columns


@dataclass
class HubSource:
    """A data set on the Hugging Face hub, pinned. ``splits``: ours (train, valid, test, pool, heldout) -> theirs."""

    id: str
    revision: str
    splits: dict[str, list[str]]
    columns: Columns
    config: str | None = None
    where: dict[str, Any] = field(default_factory=dict)


@dataclass
class EmbeddedSource:
    """Generated text: how many rows, the label shares of this party, and which domain words it uses."""

    rows: int
    domain: str
    #: share of each label, in the order of ``labels.names``; sums to 1
    shares: list[float]
    #: seed of this data set's own draws, apart from the run's seed
    seed: int = 0

    def __post_init__(self) -> None:
        rule(self.rows >= 20, "rows", f"{self.rows} rows cannot be split into train, valid and test; 20 is the least")
        rule(all(s >= 0 for s in self.shares), "shares", "a share is negative")
        rule(abs(sum(self.shares) - 1) < 1e-6, "shares", f"sum to {sum(self.shares):g}; 1 is right")


@dataclass
class Split:
    """Stratified, seeded cut of a pool: shares of valid and test (facts: 70 / 10.2 / 19.8, seed 2021)."""

    valid: float
    test: float
    seed: int

    def __post_init__(self) -> None:
        rule(0 < self.valid < 1, "valid", f"{self.valid} is not between 0 and 1")
        rule(0 <= self.test < 1, "test", f"{self.test} is not between 0 and 1")
        rule(self.valid + self.test < 1, "test", "valid + test leave nothing to train on")


@dataclass
class DatasetSettings:
    """One party's data: a role and where it comes from, per source."""

    role: Role
    #: raw label (as in the file, written as text) -> label name
    labels: dict[str, str] = field(default_factory=dict)
    #: raw labels whose rows are left out, after contexts are built
    drop: list[str] = field(default_factory=list)
    local: LocalSource | None = None
    hub: HubSource | None = None
    embedded: EmbeddedSource | None = None
    #: [i, n]: the i-th (from 0) of n consecutive parts of every split, after dropping
    chunk: list[int] | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            fits = len(self.chunk) == 2 and 0 <= self.chunk[0] < self.chunk[1]
            rule(fits, "chunk", f"{self.chunk} is not [i, n] with 0 <= i < n")


@dataclass
class TaskSettings:
    """What is learnt: label space, data sets with their roles, pre-processing."""

    name: str
    kind: Literal["sentiment", "emotion", "inference"]
    source: Literal["embedded", "local", "hub"]
    labels: Labels
    datasets: dict[str, DatasetSettings]
    split: Split
    #: tokens a text is cut to, [CLS] and [SEP] included
    max_length: int
    #: previous utterances put behind the current one, newest first (ERC; 0 = utterance only)
    context: int
    #: a file that is not there: stop, or leave its data set out and say so
    missing: Literal["error", "skip"]
    #: rows per split, at most (a seeded, label-stratified subset); null = all
    limit: int | None
    #: which of the table's measures is the headline: f1 or accuracy
    score: Literal["f1", "accuracy"]
    #: paired sentences: probe name -> templates and the words put into them (App. D.2)
    probe: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rule(8 <= self.max_length <= 512, "max_length", f"{self.max_length} is outside 8..512 (BERT's positions)")
        rule(self.context >= 0, "context", f"{self.context} is negative")
        rule(self.limit is None or self.limit >= 10, "limit", f"{self.limit} rows are too few; 10 is the least")
        roles = [d.role for d in self.datasets.values()]
        rule(roles.count("global") == 1, "datasets", f"{roles.count('global')} have role global; exactly one is right")
        rule(roles.count("transfer") == 1, "datasets", f"{roles.count('transfer')} have role transfer; one is right")
        rule("local" in roles, "datasets", "none has role local")


# --------------------------------------------------------------------------------------------- the other groups


@dataclass
class ModelSettings:
    """BERT encoder and head. ``per_party`` overrides any key for one data set's local model (unlike architectures)."""

    name: str
    head: Literal["published", "plain"]
    #: scratch = random start; hub = ``hub_id`` at ``revision``; else a folder (from ``paths.data`` unless absolute)
    weights: str
    #: train = a WordPiece vocabulary learnt on the task's train texts; hub; else a vocab.txt or its folder
    vocab: str
    vocab_size: int
    hub_id: str
    revision: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    dropout: float
    per_party: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("vocab_size", "hidden", "layers", "heads", "intermediate"):
            rule(getattr(self, key) > 0, key, f"{getattr(self, key)} is not above 0")
        rule(self.hidden % self.heads == 0, "heads", f"{self.heads} does not divide hidden={self.hidden}")
        rule(0 <= self.dropout < 1, "dropout", f"{self.dropout} is not in [0, 1)")
        allowed = {"hidden", "layers", "heads", "intermediate", "dropout", "head"}
        for party, changes in self.per_party.items():
            for key in changes:
                rule(key in allowed, f"per_party.{party}.{key}", f"cannot differ per party{nearest(key, allowed)}")


@dataclass
class StageSettings:
    """One training stage (AdamW, constant rate)."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float

    def __post_init__(self) -> None:
        rule(self.epochs >= 1, "epochs", f"{self.epochs} is not at least 1")
        rule(self.batch >= 1, "batch", f"{self.batch} is not at least 1")
        rule(self.lr > 0, "lr", f"{self.lr} is not above 0")
        rule(self.weight_decay >= 0, "weight_decay", f"{self.weight_decay} is negative")


@dataclass
class TrainingSettings:
    """How long and how fast each stage trains; ``local_`` etc. follow the stages of the KNOT pipeline."""

    name: str
    local: StageSettings
    pretrain: StageSettings
    distil: StageSettings


@dataclass
class HardwareSettings:
    """Where it runs. None of it is in the run id."""

    name: str
    device: str
    #: torch threads per process; 1 keeps numbers the same under every launcher
    threads: int
    #: processes that train independent models side by side; 0 = one per core
    workers: int

    def __post_init__(self) -> None:
        rule(self.threads >= 1, "threads", f"{self.threads} is not at least 1")
        rule(self.workers >= 0, "workers", f"{self.workers} is negative; 0 = one per core")


@dataclass
class PathSettings:
    """Folders. ``data``: the root that ``task.source=local`` reads; ``out``: where runs are written."""

    data: str | None
    out: str


@dataclass
class TrackerSettings:
    """Mirror of the local records. ``none`` or ``wandb``; the local records stay the truth."""

    name: Literal["none", "wandb"]
    project: str = "knot_runner"
    mode: Literal["offline", "online"] = "offline"
    group: str | None = None


@dataclass
class EntropySettings:
    """``kl`` KL(teacher || student), the paper; ``symmetric`` ``cross_entropy`` (base 2): the public SA, ERC code."""

    name: Literal["entropy"]
    form: Literal["kl", "symmetric", "cross_entropy"]


@dataclass
class SinkhornSettings:
    """Regularised transport (KNOT eq. 1). ``newton`` converges to ``tolerance``; ``geomloss`` runs its schedule with
    ``scaling`` (.5 = as published); ``exact`` (POT) and ``line`` (closed form) have no regularisation."""

    name: Literal["sinkhorn"]
    solver: Literal["newton", "geomloss", "exact", "line"]
    epsilon: float
    tolerance: float
    scaling: float

    def __post_init__(self) -> None:
        rule(self.epsilon >= 1e-4, "epsilon", f"{self.epsilon} is below 1e-4; solver=exact has no regularisation")
        rule(1e-12 <= self.tolerance <= 1e-3, "tolerance", f"{self.tolerance} is outside 1e-12..1e-3")
        rule(0 < self.scaling < 1, "scaling", f"{self.scaling} is not between 0 and 1")


#: Settings of the losses that come with the package; a plug-in's loss brings its own (methods/losses.py).
LOSS_SETTINGS: dict[str, type] = {"entropy": EntropySettings, "sinkhorn": SinkhornSettings}


@dataclass
class BiasSettings:
    """Random texts that show a model's probability bias B_k (paper: 100,000 texts of 200 tokens)."""

    texts: int
    tokens: int

    def __post_init__(self) -> None:
        rule(self.texts >= 1, "texts", f"{self.texts} is not at least 1")
        rule(self.tokens >= 1, "tokens", f"{self.tokens} is not at least 1")


@dataclass
class KnotSettings:
    """KNOT distillation (eq. 3): a loss, a teacher weighting, and how both are scaled."""

    name: str
    algorithm: Literal["knot"]
    loss: dict[str, Any]
    weighting: str
    #: divide by the sum of weights (Algorithm 1 line 11) or not (eq. 3, public code)
    normalise: bool
    student_temperature: float
    teacher_temperature: float
    bias: BiasSettings

    def __post_init__(self) -> None:
        for key in ("student_temperature", "teacher_temperature"):
            rule(getattr(self, key) > 0, key, f"{getattr(self, key)} is not above 0")


@dataclass
class TeachersSettings:
    """Local models and the pretrained global model alone, as in the paper's Table 1."""

    name: str
    algorithm: Literal["teachers"]
    bias: BiasSettings


METHOD_SETTINGS: dict[str, type] = {"knot": KnotSettings, "teachers": TeachersSettings}


@dataclass
class Settings:
    """One run, whole."""

    seed: int
    task: TaskSettings
    model: ModelSettings
    method: dict[str, Any]
    training: TrainingSettings
    hardware: HardwareSettings
    tracker: TrackerSettings
    paths: PathSettings
    #: Python modules or files that add losses, weightings, ... to the tables; imported before anything runs
    plugins: list[str]
    #: a preset's grid, and how ``table`` and ``plot`` show it; neither is part of a run
    sweep: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        rule(self.seed >= 0, "seed", f"{self.seed} is negative")


def build_run(config: dict[str, Any]) -> tuple[Settings, Any]:
    """The settings of one run, and its method's own settings (one of ``METHOD_SETTINGS``), from the composed config.

    A loss that is not in ``LOSS_SETTINGS`` is left to the run, which knows the plug-ins.
    """
    settings = build(Settings, config, "")
    algorithm = settings.method.get("algorithm")
    if algorithm not in METHOD_SETTINGS:
        raise UserError(f"method.algorithm: no algorithm {algorithm!r}{nearest(str(algorithm), METHOD_SETTINGS)}")
    method = build(METHOD_SETTINGS[algorithm], settings.method, "method")
    if isinstance(method, KnotSettings):
        if "name" not in method.loss:
            raise UserError("method.loss.name: is not set")
        if method.loss["name"] in LOSS_SETTINGS:
            build(LOSS_SETTINGS[method.loss["name"]], method.loss, "method.loss")
    for party in settings.model.per_party:
        if party not in settings.task.datasets:
            raise UserError(
                f"model.per_party.{party}: task {settings.task.name} has no such data set"
                f"{nearest(party, settings.task.datasets)}"
            )
    return settings, method


def run_id(config: dict[str, Any]) -> str:
    """Name of a run's folder: hash of all settings that can change its numbers.

    Of each data set only the source in use counts, so a new hub revision leaves the ids of local runs alone.
    """
    counted = {key: value for key, value in config.items() if key not in NOT_IN_RUN_ID}
    task = dict(counted["task"])
    unused = {"embedded", "local", "hub"} - {task["source"]}
    task["datasets"] = {
        name: {key: value for key, value in data.items() if key not in unused}
        for name, data in task["datasets"].items()
    }
    return digest({**counted, "task": task}, 12)
