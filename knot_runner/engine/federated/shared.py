"""One program for many runs: each has an engine of its own in its hands, and those that fit together are one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from torch import Tensor

from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import Blueprint, Engine, ImageData, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.shared_batch import BatchedEngine
from knot_runner.engine.federated.shared_pool import ExclusiveEngine, PooledEngine, SharedEngine
from knot_runner.engine.federated.stacked import Stacked
from knot_runner.engine.hardware import prepare_device
from knot_runner.util.processes import Ended

#: one line for the user
_Say = Callable[[str], None]


class EnginePool:
    """Hands engines to runs that are threads of this program.

    Runs with the same model, image data (the same tensors in memory) and hardware share one: ``lean`` deals all their
    requests to its worker processes, ``stacked`` merges them into one stack, ``loop`` takes one run at a time. What
    computes in this process, ``stacked`` and ``loop``, computes for one run or one merger at a time. An engine is made
    at its first use, and closed when no run has it any more.

    Results are those of the engine alone: the same bits with ``lean``, ``loop``, and ``stacked`` at a fixed
    ``hardware.stack``; equal up to rounding with ``stack=0``. What a user should know of is told to every run that it
    may concern, as it happens; ``say`` listens for those that bring none of their own.
    """

    def __init__(self, say: _Say) -> None:
        self._say = say
        self._turn = threading.Lock()  # whoever computes in this process has it
        self._lock = threading.Lock()  # of what follows; taken after the turn, where both are
        self._groups: dict[Hashable, _Group] = {}
        self._closed = False

    def engine(
        self,
        hardware: HardwareSettings,
        blueprint: Blueprint,
        data: ImageData,
        test: ImageData,
        say: _Say | None = None,
    ) -> Engine:
        """As :func:`make_engine`, for a run's thread.

        ``say`` is called from any thread, until the engine is closed. Raises :class:`UserError`, and :class:`Ended`
        after :meth:`close`.
        """
        key = _key(hardware, blueprint, data, test)
        with self._turn:  # switches are set, and a GPU's memory is taken, while nobody computes
            prepare_device(hardware)
            with self._lock:
                if self._closed:
                    raise Ended("the engines have ended")
                if key not in self._groups:
                    self._groups[key] = _Group(hardware, blueprint, data, test, self._turn)
                group = self._groups[key]
                member = Member(group.engine, group.shared, lambda: self._leave(key, member))
                group.join(member, say or self._say)
        return member

    def close(self) -> None:
        """End everything, at once: runs that wait get :class:`Ended`, workers are killed. Twice does no harm."""
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
    """A run's engine: what it shares with others, until :meth:`close`."""

    def __init__(self, engine: Engine, shared: SharedEngine, leave: Callable[[], None]) -> None:
        self.name, self.device = engine.name, engine.device
        self._shared, self._leave, self._closed = shared, leave, False

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`. Raises :class:`Ended` when the desk was closed."""
        return self._shared.train(cohort)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`. Raises :class:`Ended` when the desk was closed."""
        return self._shared.logits(requests)

    def close(self) -> None:
        """See :class:`Engine`; the others keep theirs."""
        if not self._closed:
            self._closed = True
            self._leave()


class _Group:
    """Runs that share an engine. It holds their image data, so that these addresses stay theirs."""

    def __init__(
        self, hardware: HardwareSettings, blueprint: Blueprint, data: ImageData, test: ImageData, turn: threading.Lock
    ) -> None:
        self._images = data, test
        self._lock, self._says = threading.Lock(), dict[Member, _Say]()
        self.engine = make_engine(hardware, blueprint, data, test, self._tell, shared=True)
        self.shared = _shared(self.engine, turn)

    def join(self, member: Member, say: _Say) -> None:
        """One run more."""
        with self._lock:
            self._says[member] = say
        self.shared.users(len(self._says))

    def leave(self, member: Member) -> bool:
        """One run fewer; whether it was the last."""
        with self._lock:
            del self._says[member]
        self.shared.users(len(self._says))
        return not self._says

    def _tell(self, text: str) -> None:
        """Say ``text`` to every run, once to those that listen together."""
        with self._lock:
            for say in set(self._says.values()):
                say(text)


def _shared(engine: Engine, turn: threading.Lock) -> SharedEngine:
    if isinstance(engine, Lean):
        return PooledEngine(engine)
    return BatchedEngine(engine, turn) if isinstance(engine, Stacked) else ExclusiveEngine(engine, turn)


def _key(hardware: HardwareSettings, blueprint: Blueprint, data: ImageData, test: ImageData) -> Hashable:
    """What runs must have in common to share an engine."""
    names = ("device", "engine", "precision", "threads", "workers", "stack")
    return tuple(getattr(hardware, name) for name in names), repr(blueprint), _address(data), _address(test)


def _address(images: ImageData) -> Hashable:
    """Where pixels and labels lie, and what they are normalised by."""
    tensors = images.pixels, images.labels
    places = tuple((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in tensors)
    return places, tuple(images.mean.tolist()), tuple(images.std.tolist())
