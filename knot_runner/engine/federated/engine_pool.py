"""Engines for runs that are threads of one process: runs of the same model, data and hardware share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.ray_engine import RayEngine
from knot_runner.engine.federated.shared_engine import BatchedEngine, ExclusiveEngine, PooledEngine, SharedEngine
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.engine.hardware import prepare_device
from knot_runner.models.network import Network
from knot_runner.util.processes import Ended

#: prints one line for the user
_Note = Callable[[str], None]


class EnginePool:
    """Engines for runs that are threads of this process.

    Runs with the same model, data (the same tensors in memory) and hardware share one: ``lean`` and ``ray`` are pooled
    (their workers take the requests of all), ``stacked`` batched (one stack of all), ``loop`` exclusive (one run at a
    time). Of those that compute in this process, ``stacked`` and ``loop``, one computes at a time. An engine is made at
    its first use, and closed with its last run.

    Results are those of the engine alone: the same bits with ``lean``, ``loop``, and ``stacked`` at a fixed
    ``hardware.stack``; equal up to rounding with ``stack=0``. Lines for the user go to every run that shares
    the engine; ``note`` prints them for runs without one of their own.
    """

    def __init__(self, note: _Note) -> None:
        self._note = note
        self._computing = threading.Lock()  # held by the one engine that computes in this process
        self._lock = threading.Lock()  # of the fields below; acquired after _computing
        self._groups: dict[Hashable, _Group] = {}
        self._closed = False

    def engine(
        self,
        hardware: HardwareSettings,
        network: Network,
        data: ClientData,
        test: ClientData,
        note: _Note | None = None,
        plugins: Sequence[str] = (),
        others: Sequence[Network] = (),
    ) -> Engine:
        """Like :func:`make_engine`, for a run's thread.

        ``note`` is called from any thread, until the engine is closed. Raises :class:`UserError`, and :class:`Ended`
        after :meth:`close`.
        """
        key = (*_key(hardware, network, data, test), tuple(plugins), repr(others))
        with self._computing:  # global switches are set and GPU memory allocated while nothing computes
            prepare_device(hardware)
            with self._lock:
                if self._closed:
                    raise Ended("the engines have ended")
                if key not in self._groups:
                    self._groups[key] = _Group(hardware, network, data, test, plugins, self._computing, others)
                group = self._groups[key]
                member = Member(group.engine, group.shared, lambda: self._leave(key, member))
                group.join(member, note or self._note)
        return member

    def close(self) -> None:
        """End all engines at once: waiting runs get :class:`Ended`, workers are killed. May be called again."""
        with self._lock:
            self._closed = True
            groups = list(self._groups.values())
        for group in groups:
            group.shared.stop()

    def _leave(self, key: Hashable, member: Member) -> None:
        with self._lock:
            group = self._groups[key]
            if not group.leave(member):
                return
            del self._groups[key]
        group.shared.close()


class Member:
    """One run's handle on a shared engine, until :meth:`close`."""

    def __init__(self, engine: Engine, shared: SharedEngine, leave: Callable[[], None]) -> None:
        self.name, self.device = engine.name, engine.device
        self._shared, self._leave, self._closed = shared, leave, False

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`. Raises :class:`Ended` when the pool was closed."""
        return self._shared.train(cohort)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`. Raises :class:`Ended` when the pool was closed."""
        return self._shared.logits(requests)

    def close(self) -> None:
        """See :class:`Engine`; the other runs keep the engine."""
        if not self._closed:
            self._closed = True
            self._leave()


class _Group:
    """Runs that share an engine. Keeps their data alive, since the key is its addresses."""

    def __init__(
        self, hardware: HardwareSettings, network: Network, data: ClientData, test: ClientData,
        plugins: Sequence[str], computing: threading.Lock, others: Sequence[Network],
    ) -> None:  # fmt: skip
        self._data = data, test
        self._lock, self._listeners = threading.Lock(), dict[Member, _Note]()
        self.engine = make_engine(hardware, network, data, test, self._broadcast, plugins, True, others)
        self.shared = _shared(self.engine, computing)

    def join(self, member: Member, note: _Note) -> None:
        """Add a run."""
        with self._lock:
            self._listeners[member] = note
        self.shared.users(len(self._listeners))

    def leave(self, member: Member) -> bool:
        """Remove a run; whether it was the last."""
        with self._lock:
            del self._listeners[member]
        self.shared.users(len(self._listeners))
        return not self._listeners

    def _broadcast(self, text: str) -> None:
        """Print ``text`` for every run, once where runs share a ``note`` function."""
        with self._lock:
            for note in set(self._listeners.values()):
                note(text)


def _shared(engine: Engine, computing: threading.Lock) -> SharedEngine:
    if isinstance(engine, Lean | RayEngine):
        return PooledEngine(engine)
    return BatchedEngine(engine, computing) if isinstance(engine, Stacked) else ExclusiveEngine(engine, computing)


def _key(hardware: HardwareSettings, network: Network, data: ClientData, test: ClientData) -> tuple[Hashable, ...]:
    """Returns the key that runs sharing an engine have in common."""
    names = ("device", "engine", "precision", "threads", "workers", "stack")
    return tuple(getattr(hardware, name) for name in names), repr(network), _address(data), _address(test)


def _address(data: ClientData) -> Hashable:
    """Addresses of large tensors, and the values of small ones."""
    places = []
    for each in data.tensors():
        place = each.tolist() if each.numel() < 64 else each.data_ptr()
        places.append((str(place), each.shape, each.stride(), each.dtype))
    return tuple(places)
