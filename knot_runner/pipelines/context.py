"""What every pipeline is given, and what every result says about itself."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import knot_runner
from knot_runner import provenance
from knot_runner.config.settings import FederatedSettings, KnotSettings, MutualSettings, Settings
from knot_runner.config.settings.families import call, family_of
from knot_runner.data.counts import Counts
from knot_runner.data.tasks import ImageTask, Partition, PartyTask
from knot_runner.engine.federated.cohort import Engine
from knot_runner.engine.store import Store
from knot_runner.records import CONFIG_FILE
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from knot_runner.data.images.unlabelled import UnlabelledImages
    from knot_runner.engine.execute import Executor

#: (title, finished steps, all steps, short text) -> None; called often
Progress = Callable[[str, int, int, str], None]
#: one row of numbers, for the tracker
Log = Callable[[dict[str, Any]], None]
#: one line for the user
Note = Callable[[str], None]


def transport_libraries(hp: Any) -> list[str]:
    """Packages, by their names in the index, whose transport solvers a method's numbers come from."""
    distilled, clustered = None, False
    if isinstance(hp, FederatedSettings):
        distilled = hp.distil
        clustered = hp.clustering is not None and hp.clustering.graph != "none"
    elif isinstance(hp, KnotSettings | MutualSettings):
        distilled = hp
    solver = distilled.loss.get("solver") if distilled is not None else None
    libraries = list(family_of(hp).libraries)
    if solver == "geomloss":
        libraries.append("geomloss")
    if solver == "exact" or clustered:
        libraries.append("pot")
    return libraries


@dataclass(frozen=True)
class Services:
    """What a run reads data and trains with: its own by default; in a fused sweep, what its jobs share.

    Each is called as the function or class that is named here by default, which is imported by then. ``beside``: how
    many other jobs may use them at the same time, and be waited for.
    """

    images: Callable[..., ImageTask] = partial(call, "knot_runner.data.images.load:load_images")
    texts: Callable[..., PartyTask] = partial(call, "knot_runner.data.load:load_task")
    engine: Callable[..., Engine] = partial(call, "knot_runner.engine.federated.choose:make_engine")
    executor: Callable[..., Executor] = partial(call, "knot_runner.engine.execute:Executor")
    beside: int = 0
    unlabelled: Callable[..., UnlabelledImages] = partial(call, "knot_runner.data.images.unlabelled:load_unlabelled")
    parties: Callable[..., PartyTask] = partial(call, "knot_runner.pipelines.parties.setup:read_parties")


@dataclass(frozen=True, eq=False)
class RunInputs:
    """What a run reads before it trains: ``task``, dealt out by ``partition``, how many examples of each class every
    party has, and what the user should hear of it. Each pipeline's ``look`` makes it, for the run and for ``check``."""

    task: Any
    partition: Partition | None
    counts: Counts | None
    notes: list[str]


@dataclass(frozen=True)
class RunContext:
    """One run: its settings, those of its method, its folder, callbacks for progress and notes, and services."""

    settings: Settings
    hp: Any
    folder: Path
    config_yaml: str
    run_id: str
    progress: Progress
    note: Note
    services: Services = Services()
    #: with it, stages in the store that other code made are made anew
    code: str | None = None
    #: a finished run that was made from other data is shown as it is
    keep: bool = False
    #: is given the numbers of every round, epoch, iteration, pair or temperature as they are known
    log: Log = lambda row: None

    def begin(self, notes: Sequence[str]) -> None:
        """Say the ``notes`` and write the config, from which on the folder is that of a run."""
        for note in notes:
            self.note(note)
        write_atomic(self.folder / CONFIG_FILE, self.config_yaml)

    @property
    def family(self) -> str:
        """The name of the method's family."""
        return family_of(self.hp).name

    @property
    def data_root(self) -> Path | None:
        """The folder that ``source=local`` reads."""
        data = self.settings.paths.data
        return Path(data).expanduser() if data else None

    @property
    def store(self) -> Store:
        """The stages that runs share, below ``paths.out``."""
        return Store(Path(self.settings.paths.out) / "artefacts", self.code, tuple(self.settings.plugins))

    def describe(
        self, data: str, source: str, device: torch.device, files: Sequence[provenance.Opened] = ()
    ) -> dict[str, Any]:
        """What any result says, whatever becomes of the run. ``data``: digest of what was read, from ``files``."""
        return {
            "task": self.settings.task.name,
            "source": source,
            "method": self.settings.method["name"],
            "seed": self.settings.seed,
            "data": data,
            "device": str(device),
            "threads": self.settings.hardware.threads,
            **provenance.made_by(self.settings.plugins),
            "files": [file.record() for file in files],
            "versions": {
                "knot_runner": knot_runner.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in transport_libraries(self.hp)},
            },
        }
