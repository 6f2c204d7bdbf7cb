"""The input of every pipeline, and the provenance facts in every result."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

import knot_runner
from knot_runner import metrics, provenance
from knot_runner.config.settings.families import call, family_of
from knot_runner.config.settings.run import Settings
from knot_runner.data.counts import Counts
from knot_runner.data.tasks import ImageTask, Partition, PartyTask
from knot_runner.engine.commit import Commits
from knot_runner.engine.hardware import machine
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.metrics import Coordinates
from knot_runner.records import CONFIG_FILE
from knot_runner.util.files import Facts, LogRow, write_atomic

if TYPE_CHECKING:
    from knot_runner.data.images.held_out import UnlabeledImages
    from knot_runner.engine.store import Store

GroupT = TypeVar("GroupT")
#: Function that shows the progress: title, finished steps, all steps, short text. It is called often.
Progress = Callable[[str, int, int, str], None]
#: Function that sends one row of numbers to the tracker.
Log = Callable[[LogRow], None]
#: Function that shows one line to the user.
Note = Callable[[str], None]


Array = np.ndarray | torch.Tensor
#: File in a run's folder with the probabilities and labels of each test set.
PREDICTIONS_FILE = "predictions.safetensors"
#: PyPI names of the packages that affect the numbers of a run.
LIBRARIES = ("torch", "numpy", "scipy", "pot", "geomloss")


def as_kind(settings: object, kind: type[GroupT]) -> GroupT:
    """Return ``settings``, typed as an instance of ``kind`` for type checkers.

    ``settings`` must be an instance of ``kind``.
    """
    assert isinstance(settings, kind)
    return settings


def elapsed(began: float) -> float:
    """Return the seconds from ``began`` to ``time.monotonic()``, rounded to two decimals."""
    return round(time.monotonic() - began, 2)


def total_seconds(rows: Iterable[LogRow]) -> float:
    """Return the sum of ``seconds`` over log rows, rounded to two decimals."""
    return round(sum(row["seconds"] for row in rows), 2)


def write_predictions(folder: Path, predictions: Mapping[str, tuple[Array, Array]]) -> None:
    """Write the predictions on test sets to ``predictions.safetensors`` in the run's ``folder``.

    ``predictions`` maps the name of a test set to predicted probabilities [N, C] and true labels [N].
    """
    arrays = {}
    for name, (probabilities, labels) in predictions.items():
        arrays[f"{name}.probabilities"] = torch.as_tensor(probabilities).float()
        arrays[f"{name}.labels"] = torch.as_tensor(labels)
    write_atomic(folder / PREDICTIONS_FILE, tensor_parts(arrays))


@dataclass(frozen=True)
class Services:
    """Functions that read a run's data. They can be replaced by functions with the same signatures."""

    images: Callable[..., ImageTask] = partial(call, "knot_runner.data.images.load:load_images")
    texts: Callable[..., PartyTask] = partial(call, "knot_runner.data.load:load_task")
    unlabeled: Callable[..., UnlabeledImages] = partial(call, "knot_runner.data.images.held_out:load_unlabeled")
    parties: Callable[..., PartyTask] = partial(call, "knot_runner.pipelines.parties.setup:read_parties")


@dataclass(frozen=True, eq=False)
class RunInputs:
    """Inputs of a run, read before training.

    Attributes:
        counts: The number of examples of each class at every party.
        notes: Notes for the user.
    """

    task: Any
    partition: Partition | None
    counts: Counts | None
    notes: list[str]
    #: further inputs of the family's ``run`` function
    prepared: Any = None
    #: files of the model, which the result lists in addition to the files of the task
    files: Sequence[provenance.Opened] = ()


@dataclass
class RunRecord:
    """What a run has recorded so far.

    Attributes:
        show: Function that shows one line to the user.
        facts: Fields of the result.
        notes: The lines that were shown.
        seconds: The seconds that each part of the run took, by the part's name.
    """

    show: Note
    facts: Facts = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: Facts = field(default_factory=dict)

    def add(self, **facts: Any) -> None:
        """Add ``facts`` to the result. New facts replace earlier facts with the same names."""
        self.facts.update(facts)

    def note(self, text: str) -> None:
        """Add the note ``text`` to the result, and print the note."""
        self.notes.append(text)
        self.show(text)


@dataclass(frozen=True)
class RunContext:
    """The input of a pipeline: the settings and folder of a run, callbacks, and functions that read the data."""

    settings: Settings
    method: Any
    folder: Path
    config_yaml: str
    run_id: str
    progress: Progress
    note: Note
    services: Services = Services()
    #: if set, stages and commits of other code versions are not reused
    code: str | None = None
    #: whether to show the result of a finished run although its data have changed
    keep: bool = False
    #: receives a row of numbers for every round, epoch, iteration, pair or temperature
    log: Log = lambda row: None

    def images(self) -> ImageTask:
        """Return the run's images, read by ``services`` or memory-mapped from the cache.

        Raises:
            UserError: The images cannot be read.
        """
        settings = self.settings.task
        root = self.data_root
        if settings.source != "local" or root is None or self.settings.plugins:  # a plug-in task may read any file
            return self.services.images(settings, root)
        images: ImageTask = call("knot_runner.pipelines.kept_images:mapped_images", self, root)
        return images

    def predicted(self, probabilities: np.ndarray, labels: np.ndarray, coordinates: Coordinates) -> Facts:
        """Write a file with a global model's predictions on all test examples; return the metrics as result fields.

        The ``probabilities`` have shape [N, C].
        """
        write_predictions(self.folder, {"test": (probabilities, labels)})
        measured = metrics.measured(metrics.TestSet(probabilities, probabilities, labels, coordinates))
        return {"evaluated": "global", "metrics": {name: {"ALL": value} for name, value in measured.items()}}

    def commits(self, data: str, folder: Path | None = None) -> Commits:
        """Return the commits: saved states from which a run or stage resumes.

        Args:
            data: The digest of the inputs. Commits for other inputs are not used.
            folder: The folder of the commits. The default is the run's folder.
        """
        return Commits(folder or self.folder, data, self.note, self.code, self.settings.plugins)

    def begin(self) -> None:
        """Write the config file, which marks the folder as a run folder. Call this method after all checks."""
        write_atomic(self.folder / CONFIG_FILE, self.config_yaml)

    @property
    def family(self) -> str:
        """Return the name of the method's family."""
        return family_of(self.method).name

    @property
    def data_root(self) -> Path | None:
        """Return the data folder ``paths.data_dir``; None if it is not set."""
        data = self.settings.paths.data_dir
        return Path(data) if data else None

    @property
    def store(self) -> Store:
        """Return the artifact store. All runs with the same ``paths.output_dir`` share the store."""
        from knot_runner.engine.store import Store  # only runs with shared stages need this module

        return Store(Path(self.settings.paths.output_dir) / "artifacts", self.code, tuple(self.settings.plugins))

    def describe(self, inputs: RunInputs) -> Facts:
        """Return the facts that every result contains, including the result of a diverged run.

        The entry ``device`` is "cpu". A pipeline that uses another device replaces this entry.
        """
        task = inputs.task
        settings = self.settings
        files = [*getattr(task, "files", ()), *inputs.files]
        facts = {
            "kind": self.family,
            "task": settings.task.name,
            "source": task.source,
            "method": settings.method.name,
            "seed": settings.seed,
            "data": getattr(task, "source_digest", None) or task.digest,
            "device": "cpu",
            "threads": settings.hardware.threads,
            "machine": machine(),
            **provenance.made_by(settings.plugins),
            "files": list(map(dataclasses.asdict, files)),
            "versions": {
                "knot_runner": knot_runner.__version__,
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in LIBRARIES},
            },
        }
        if inputs.counts is not None:
            facts |= {"label_counts": inputs.counts.record()}
        if hasattr(task, "classes"):
            facts |= {"labels": {"names": task.classes, "coordinates": task.coordinates}}
        return facts


def run_context(job: Any, progress: Progress, note: Note, **more: Any) -> RunContext:
    """Return the context for running ``job``, a :class:`~knot_runner.composing.job.ComposedJob`.

    ``more``: further fields of :class:`RunContext`.
    """
    return RunContext(job.settings, job.method, job.folder, job.config_yaml, job.run_id, progress, note, **more)
