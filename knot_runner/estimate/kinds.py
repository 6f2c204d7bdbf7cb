"""Which pieces of work a job is made of, and which of them take alike, from its composed settings alone."""

from __future__ import annotations

from typing import Any

from knot_runner.compose.job import ComposedJob
from knot_runner.config.settings import FederatedSettings, TaskSettings
from knot_runner.config.strict import digest
from knot_runner.estimate.pieces import Load, Piece
from knot_runner.records import read_sealed

#: Of ``hardware``, what decides how long a piece takes.
HARDWARE = ("device", "threads", "workers", "engine", "precision", "stack")
#: Of ``training``, what does not decide how long a round takes.
NOT_OF_A_ROUND = ("name", "rounds", "lr", "target", "stop_at_target", "evaluate_every")
#: Of a federated method, what does.
OF_A_ROUND = ("algorithm", "aggregation", "batchnorm", "stragglers", "head_epochs", "final_head_epochs")

#: How the name of a kind of teachers begins.
TEACHER = "teacher"
#: Kind of starting worker processes, each of which loads what the timed process had to.
WORKERS = "worker processes"
#: What jobs share: the stages of clustering, and reading data (once only where they run in one program).
DISTANCE_MATRICES, CLUSTERING_KIND, DATA_SETS_KIND = "distance matrices", "clusterings", "data sets"


def on_texts(job: ComposedJob) -> bool:
    """Whether the job distils texts: its pieces depend on the data (:mod:`knot_runner.estimate.texts`)."""
    return isinstance(job.settings.task, TaskSettings)


def load_of(job: ComposedJob) -> Load:
    """The pieces of a job that is not on texts; of one that was stopped, the rounds that are left."""
    if not isinstance(job.method, FederatedSettings):
        name = f"{job.settings.task.name} {job.settings.method['name']}"
        pieces = [Piece("runs", name, job.run_id, whole_kind(job.config))]
    else:
        rounds = job.settings.training.rounds
        name = f"{job.settings.task.name} {job.method.algorithm}, {rounds} round{'s' * (rounds > 1)}"
        left = max(0, rounds - (rounds_done(job) or 0))
        pieces = [*_clustering(job), Piece("runs", name, job.run_id, round_kind(job.config), left, step=1)]
    if job.settings.on_images:
        read = digest({"task": job.config["task"], "data": job.config["paths"]["data"]})
        pieces.insert(0, Piece(DATA_SETS_KIND, "data set", read, None))
    return Load(tuple(pieces))


def rounds_done(job: ComposedJob) -> int | None:
    """Rounds (epochs, stages) in the last commit of a job that was stopped; None when there is no commit."""
    for folder in (job.folder, job.folder / "training"):  # clusters train in the latter
        record = read_sealed(folder / "commit.json")
        if record is not None:
            return record["step"] + 1
    return None


def _clustering(job: ComposedJob) -> list[Piece]:
    """The distances between clients, and their clusters, which runs of one seed share."""
    spec = job.config["method"].get("clustering")
    if not spec or spec["graph"] == "none":
        return []
    kind = distances_kind(job.config)
    between = digest([kind, job.settings.seed])
    clusters = digest([between, {key: value for key, value in spec.items() if key != "otdd"}])
    name = f"{job.settings.task.name} distances, {job.config['partition']['kind']}"
    return [
        Piece(DISTANCE_MATRICES, name, between, kind),
        Piece(CLUSTERING_KIND, "clustering", clusters, None),
    ]


def round_kind(config: dict[str, Any]) -> str:
    """Federated runs of one kind take alike in every round, whatever their seed, temperature and rate.

    Runs that are clustered are of a kind of their own, whichever way clusters were found.
    """
    training = {key: value for key, value in config["training"].items() if key not in NOT_OF_A_ROUND}
    method = {key: config["method"].get(key) for key in OF_A_ROUND}
    clusters = (config["method"].get("clustering") or {}).get("clusters")
    if (config["method"].get("clustering") or {}).get("graph") == "none":
        clusters = "one"
    every = config["training"]["evaluate_every"]
    return digest(["rounds", *_ground(config), training, every, method, clusters])


def distances_kind(config: dict[str, Any]) -> str:
    """Distances between clients that take alike, whatever the seed."""
    otdd = config["method"]["clustering"]["otdd"]
    return digest(["distances", *_ground(config), otdd])


def whole_kind(config: dict[str, Any]) -> str:
    """Runs that are known as a whole only: all settings but the seed."""
    method = {key: value for key, value in config["method"].items() if key != "name"}
    return digest(["whole", *_ground(config), config.get("training"), method])


def family(config: dict[str, Any]) -> str:
    """Jobs on texts of one family read the same data into the same networks."""
    return digest(["texts", *_ground(config), config["paths"]["data"], config.get("plugins")])


def recorded_family(config: dict[str, Any]) -> str:
    """:func:`family`, wherever the data are."""
    return digest(["texts", *_ground(config)])


def _ground(config: dict[str, Any]) -> list[Any]:
    hardware = {key: config["hardware"].get(key) for key in HARDWARE}
    return [config["task"], config.get("partition"), config.get("model"), hardware]


def distil_kind(batch: int, loss: dict[str, Any]) -> str:
    """Distillations that take alike per epoch."""
    return f"distillation, {loss['name']} {loss.get('solver') or loss.get('form') or ''}".rstrip() + f", batch {batch}"


def teacher_kind(party: str, batch: int) -> str:
    """Trainings of one teacher that take alike per epoch."""
    return f"{TEACHER} {party}, batch {batch}"
