"""Jobs as pieces of work, from composed settings only: which pieces jobs share and which have the same cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from knot_runner.composing.job import ComposedJob
from knot_runner.config.settings import FederatedSettings, TaskSettings
from knot_runner.config.settings.families import family_of
from knot_runner.config.settings.methods.algorithms import own_keys
from knot_runner.config.strict import digest, without
from knot_runner.records import read_sealed
from knot_runner.util.messages import counted

#: Keys of ``hardware`` that determine the time of a piece.
HARDWARE = ("device", "threads", "workers", "engine", "precision", "stack")
#: Keys of ``training`` that do not affect the time of a round.
NOT_OF_A_ROUND = ("name", "rounds", "lr", "target", "stop_at_target", "evaluate_every")
#: Keys of a federated method that affect it.
OF_A_ROUND = (
    "algorithm", "aggregation", "batchnorm", "stragglers", "final_head_epochs", "distil", "options",
)  # fmt: skip
#: Keys of algorithms that are a weight in the loss, and no work.
WEIGHTS = ("mu",)
#: Prefixes of kinds: of teachers, of all trainings.
TEACHER, TRAININGS = "teacher", ("teacher", "distillation")
#: Kinds of pieces of jobs in stages: starting worker processes (each loads the same as the timed process), reading
#: the data, and evaluation.
WORKERS, START_KIND, EVALUATION = "worker processes", "starts", "evaluations"
#: Shared between jobs: the stages of clustering, and reading data (only within one program).
DISTANCE_MATRICES, CLUSTERING_KIND, DATA_SETS_KIND = "distance matrices", "clusterings", "data sets"
#: The rounds that variants of personalisation start from, and personalisation itself.
SHARED_ROUNDS, PERSONAL_MODELS = "trainings of all clients", "clients' own models"


@dataclass(frozen=True)
class Piece:
    """One piece of a job's work.

    ``stage``: its name as a shared stage; ``name``: its name when timed; ``key``: pieces with the same key are done
    once for all jobs; ``kind``: pieces of the same kind have the same cost per unit, times ``units`` (rounds, epochs,
    texts; no kind: negligible time); ``step``: pieces of the same step of a job run in parallel; ``there``: already
    done.
    """

    stage: str
    name: str
    key: str
    kind: str | None
    units: float = 1.0
    step: int = 0
    there: bool = False


@dataclass(frozen=True)
class Cost:
    """Cost of pieces of one kind: seconds ``start`` plus seconds per ``unit``; cores kept ``busy`` (from, to).

    ``memory``: peak bytes of all processes; ``disk``: bytes per piece; both None if not measured; ``source``: how the
    cost was obtained.
    """

    start: float
    unit: float
    busy: tuple[float, float] = (1.0, 1.0)
    memory: int | None = None
    disk: int | None = None
    source: str = "timed"

    def seconds(self, piece: Piece) -> float:
        """Seconds of ``piece`` alone."""
        return self.start + self.unit * piece.units


Costs = Mapping[str, Cost]


@dataclass(frozen=True)
class Load:
    """The pieces of one job, in order; ``workers``: processes that share the pieces of a step."""

    pieces: tuple[Piece, ...]
    workers: int = 1

    def less(self, made: set[str]) -> Load:
        """The remaining load without pieces whose key is in ``made`` and those already done."""
        return Load(tuple(p for p in self.pieces if not p.there and p.key not in made and p.kind), self.workers)

    def known(self, costs: Costs) -> bool:
        """Whether the cost of every piece is known."""
        return all(piece.there or piece.kind is None or piece.kind in costs for piece in self.pieces)

    def seconds(self, costs: Costs) -> float:
        """Wall time in seconds: steps run in order, the pieces of a step in parallel on the workers."""
        total = 0.0
        for _, step in groupby(self.pieces, key=lambda piece: piece.step):
            each = [costs[piece.kind].seconds(piece) for piece in step if piece.kind]
            total += max([sum(each) / self.workers, *each]) if each else 0.0
        return total


# ----------------------------------------------------------------------------------- pieces and kinds, by the settings


def has_stages(job: ComposedJob) -> bool:
    """Whether the job distils in stages, so that its pieces depend on the data (:mod:`knot_runner.estimate.stages`)."""
    return family_of(job.method).training == "stages"


def load_of(job: ComposedJob) -> Load:
    """The pieces of a job without stages; of an interrupted job, the remaining rounds."""
    task, pieces = job.settings.task.name, []
    if job.settings.on_images or isinstance(job.settings.task, TaskSettings):
        read = digest({"task": job.config["task"], "data": job.config["paths"]["data"]})
        pieces.append(Piece(DATA_SETS_KIND, "data set", read, None))
    if not isinstance(job.method, FederatedSettings):
        name = f"{task} {job.settings.method['name']}"
        return Load((*pieces, Piece("runs", name, job.run_id, whole_kind(job.config))))
    spec = job.config["method"].get("clustering")
    if spec and spec["graph"] != "none":  # runs of the same seed share the clients' distances and clusters
        kind = distances_kind(job.config)
        between = digest([kind, job.settings.seed])
        clusters = digest([between, without(spec, "otdd")])
        name = f"{task} distances, {job.config['partition']['kind']}"
        pieces.append(Piece(DISTANCE_MATRICES, name, between, kind))
        pieces.append(Piece(CLUSTERING_KIND, "clustering", clusters, None))
    rounds = job.settings.training.rounds
    distils = " with distillation" if job.method.distil is not None else ""
    name = f"{task} {job.method.algorithm}{distils}, {counted(rounds, 'round')}"
    left = max(0, rounds - (rounds_done(job) or 0))
    personal = job.method.personalisation is not None
    stage, key = (SHARED_ROUNDS, _rounds_key(job.config)) if personal else ("runs", job.run_id)
    pieces.append(Piece(stage, name, key, round_kind(job.config), left, step=1))
    if personal:
        name = f"{task} {job.method.name}, clients' own models"
        pieces.append(Piece(PERSONAL_MODELS, name, job.run_id, personal_kind(job.config), step=2))
    return Load(tuple(pieces))


def rounds_done(job: ComposedJob) -> int | None:
    """Rounds (epochs, stages) in the last commit of an interrupted job; None without a commit."""
    for folder in (job.folder, job.folder / "training"):  # clusters train in the second
        record = read_sealed(folder / "commit.json")
        if record is not None:
            return record["step"] + 1
    return None


def round_kind(config: dict[str, Any]) -> str:
    """Kind of a federated run's rounds: runs of the same kind take the same time per round, whatever their seed,
    temperature and learning rate.

    Clustered runs are a kind of their own, however the clusters were found.
    """
    training = without(config["training"], *NOT_OF_A_ROUND)
    keys = [*OF_A_ROUND, *(key for key in own_keys() if key not in WEIGHTS)]
    method = {key: config["method"].get(key) for key in keys}
    clustering = config["method"].get("clustering") or {}
    clusters = "one" if clustering.get("graph") == "none" else clustering.get("clusters")
    of_round = [training, config["training"]["evaluate_every"], method, clusters]
    fleet = [config["fleet"]] if config.get("fleet") else []
    return digest(["rounds", *_ground(config), *of_round, *fleet])


def _rounds_key(config: dict[str, Any]) -> str:
    """Key of the rounds before personalisation: runs with the same key train them once."""
    training = without(config["training"], "name", "target", "stop_at_target")
    method = without(config["method"], "name", "personalisation")
    around = [config["paths"]["data"], config.get("fleet"), config.get("privacy"), config.get("plugins")]
    return digest(["shared rounds", config["seed"], *_ground(config), training, method, *around])


def distances_kind(config: dict[str, Any]) -> str:
    """Kind of distances between clients; the same for every seed."""
    return digest(["distances", *_ground(config), config["method"]["clustering"]["otdd"]])


def personal_kind(config: dict[str, Any]) -> str:
    """Kind of personalisation after the rounds, with its evaluation; the same for every seed."""
    batch = config["training"]["batch"]
    return digest(["own models", *_ground(config), batch, without(config["method"]["personalisation"], "name")])


def whole_kind(config: dict[str, Any]) -> str:
    """Kind of runs that are timed as a whole only: all settings but the seed."""
    return digest(["whole", *_ground(config), config.get("training"), without(config["method"], "name")])


def in_family(config: dict[str, Any], kind: str) -> str:
    """``kind`` made specific to jobs on texts that train the same networks on the same texts, wherever these are
    stored."""
    return f"texts {digest(['texts', *_ground(config)])} {kind}"


def _ground(config: dict[str, Any]) -> list[Any]:
    hardware = {key: config["hardware"].get(key) for key in HARDWARE}
    transfer = [config["transfer"]] if config.get("transfer") else []
    return [config["task"], config.get("partition"), config.get("model"), hardware, *transfer]


def soft_targets_kind(batch: int, loss: dict[str, Any]) -> str:
    """Kind of KNOT's distillations of soft targets with the same time per epoch."""
    return f"distillation, {loss['name']} {loss.get('solver') or loss.get('form') or ''}".rstrip() + f", batch {batch}"


def students_kind(batch: int, model: str, terms: Iterable[str], schedule: dict[str, Any]) -> str:
    """Kind of students' trainings by loss terms with the same time per epoch."""
    return f"students {model}, {schedule['kind']}, {' + '.join(terms)}, batch {batch}"


def mutual_kind(batch: int, parties: int, loss: Mapping[str, Any]) -> str:
    """Kind of mutual trainings of parties with the same time per epoch."""
    return f"{parties} parties together, {loss['name']}, batch {batch}"


def synthesis_kind(synthesis: Mapping[str, Any], teacher: str) -> str:
    """Kind of image syntheses from a teacher with the same time per step."""
    kind = f"{synthesis['kind']} {synthesis.get('records', '')}".rstrip()
    return f"images by {kind} of {teacher}, batch {synthesis['batch']}"


def teacher_kind(party: str, batch: int) -> str:
    """Kind of trainings of a teacher with the same time per epoch."""
    name = party if party.startswith(TEACHER) else f"{TEACHER} {party}"
    return f"{name}, batch {batch}"
