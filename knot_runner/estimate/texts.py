"""The pieces of jobs on texts, as their methods plan them, and what the pieces take: carried out in a process apart.

A method plans what it needs from what is there; where an artefact is not, a stand-in lets it plan on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import BiasSettings, KnotSettings, Settings
from knot_runner.config.strict import digest
from knot_runner.data import load_task
from knot_runner.engine.requests import Network, Predict, Ref, TextRequest, Train
from knot_runner.engine.stages import key_of
from knot_runner.engine.store import Artefact, Store
from knot_runner.estimate.child import Tell
from knot_runner.estimate.kinds import WORKERS
from knot_runner.estimate.pieces import Piece
from knot_runner.estimate.text_times import PREDICTION, START_KIND, Readable, Timer, padded_tokens, training_kind
from knot_runner.methods import METHODS
from knot_runner.methods.federation import Federation
from knot_runner.methods.weighting import needs_bias
from knot_runner.pipelines.text_federation import make_federation

#: Tokens that a random piece of the vocabulary becomes, about.
PIECES_PER_WORD = 1.3
#: stage of a request -> what it is called where jobs share it
SHARED = {
    "local": "local models",
    "pretrain": "global models",
    "soft_labels": "sets of soft labels",
    "bias": "biases",
    "distil": "students",
}


@dataclass(frozen=True)
class TextJob:
    """What a process apart is given of a job."""

    run_id: str
    settings: Settings
    hp: Any


class _AbsentError(Exception):
    """What is asked for would have to be made."""


@dataclass(frozen=True)
class _Closed(Readable):
    """Finds, and makes nothing."""

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, wait: bool = True) -> Iterator[None]:
        if self.find(stage, key) is None:
            raise _AbsentError
        yield


@dataclass(frozen=True)
class StandIn:
    """What stands for an artefact that is not there while a method plans on."""

    stage: str
    key: str
    classes: int
    info: dict[str, Any] = dataclasses.field(default_factory=lambda: {"best_score": 0.0, "best_epoch": 0})

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"logits": torch.zeros(1, self.classes)}


def plan_and_time(
    tell: Tell, folder: Path, jobs: list[TextJob], out: str, data_root: Path | None, known: set[str], deadline: float
) -> None:
    """Tell the pieces of ``jobs`` (of one family), then what kinds of pieces take that are not ``known``.

    ``out``: whose artefacts count as there; nothing in it is changed. ``deadline``: moment by which the timing should
    be through.
    """
    first = jobs[0].settings
    load_plugins(first.plugins)
    tell("ready")
    planner = Planner(first, Readable(folder / "artefacts", behind=Store(Path(out) / "artefacts")), data_root)
    trainings: dict[str, Train] = {}
    for job in jobs:
        planned = planner.plan(job)
        tell("pieces", [piece for piece, _ in planned])
        for piece, request in planned:
            if isinstance(request, Train) and not piece.there and piece.kind not in known:
                trainings.setdefault(piece.kind, request)
    tell("cost", START_KIND, planner.begin, None)
    timer = Timer(tell, planner.store, first, data_root)
    timer.measure(trainings, *planner.example(), deadline)


class Planner:
    """Plans jobs of one family, whose data it reads once. ``begin``: seconds that each of them takes to begin."""

    def __init__(self, settings: Settings, store: Readable, data_root: Path | None) -> None:
        began = time.monotonic()
        self.store, self._data_root = store, data_root
        self._task = load_task(settings.task, data_root)
        read = time.monotonic()
        self._federation = make_federation(settings, self._task, store, data_root, None)
        encoded = time.monotonic()
        self._random: dict[tuple[int, int, int], Ref] = {}  # by seed, texts, tokens
        if store.root.exists():  # texts were encoded, which later jobs find done
            make_federation(settings, self._task, store, data_root, None)
        else:
            encoded = read
        self.begin = read - began + time.monotonic() - encoded

    def plan(self, job: TextJob) -> list[tuple[Piece, TextRequest | None]]:
        """The job's pieces in order, each with its request."""
        hp, federation = job.hp, self._federation_of(job)
        method = METHODS[job.settings.method["algorithm"]]
        planned: list[tuple[Piece, TextRequest | None]] = [
            (Piece(START_KIND, "texts, reading them", f"start {job.run_id}", START_KIND), None)
        ]
        state, round = method.init(hp, federation), 0
        while requests := method.plan(hp, state, federation, round):
            found = [self.store.find(*key_of(request)) for request in requests]
            pieces = (self._piece(job, r, round + 1, f is not None) for r, f in zip(requests, found, strict=True))
            planned += zip(pieces, requests, strict=True)
            state, _ = method.fold(hp, state, federation, round, requests, self._stand_ins(requests, found))
            round += 1
        planned.insert(0, (self._workers(planned), None))
        return [*planned, (self._evaluation(job, round + 1), None)]

    def example(self) -> tuple[Network, Ref]:
        """A network and encoded texts that show how fast predictions are."""
        federation = self._federation
        return federation.networks[federation.server], federation.tokens[federation.server, "train"]

    def _federation_of(self, job: TextJob) -> Federation:
        settings, hp, random = job.settings, job.hp, None
        if not isinstance(hp, KnotSettings) or needs_bias(hp.weighting):
            key = (settings.seed, hp.bias.texts, hp.bias.tokens)
            if key not in self._random:
                self._random[key] = self._random_texts(settings, hp.bias)
            random = self._random[key]
        changes = {"seed": settings.seed, "training": settings.training, "random_texts": random}
        return dataclasses.replace(self._federation, **changes)

    def _random_texts(self, settings: Settings, bias: BiasSettings) -> Ref:
        """Where they are, or a name for them where they have not been made, which takes long for many."""
        closed = _Closed(self.store.root, behind=self.store.behind)
        try:
            return make_federation(settings, self._task, closed, self._data_root, bias).random_texts
        except _AbsentError:
            return ("tokens", f"random {settings.seed} {bias.texts} {bias.tokens} {settings.task.max_length}")

    def _stand_ins(self, requests: list[TextRequest], found: list[Artefact | None]) -> list[Artefact | StandIn]:
        classes = len(self._task.labels.names)
        return [
            artefact or StandIn(*key_of(request), classes) for request, artefact in zip(requests, found, strict=True)
        ]

    def _piece(self, job: TextJob, request: TextRequest, step: int, there: bool) -> Piece:
        key, shared = "/".join(key_of(request)), SHARED[request.stage]
        if isinstance(request, Predict):
            return Piece(shared, PREDICTION, key, PREDICTION, self._tokens(job, request) / 1e6, step, there)
        kind, epochs = training_kind(request), request.training.epochs
        return Piece(
            shared,
            f"{kind.partition(', batch')[0]}, {epochs} epoch{'s' * (epochs > 1)}",
            key,
            kind,
            epochs,
            step,
            there,
        )

    def _workers(self, planned: list[tuple[Piece, TextRequest | None]]) -> Piece:
        """Starting the processes that a job's teachers train in; a job that finds its teachers needs none."""
        missing = [piece.key for piece, request in planned if isinstance(request, Train) and piece.step == 1]
        there = all(piece.there for piece, _ in planned if piece.key in missing)
        return Piece(WORKERS, "worker processes", digest(missing), WORKERS, step=-1, there=there)

    def _evaluation(self, job: TextJob, step: int) -> Piece:
        """Student and model before it on every test set, about; of teachers, each on its own, jobs share the most."""
        parties = self._federation.teachers
        tests = [
            self._federation.tokens[party, "test"] for party in parties if (party, "test") in self._federation.tokens
        ]
        tokens = sum(padded_tokens(self.store, test) for test in tests)
        return Piece("evaluations", PREDICTION, f"evaluation {job.run_id}", PREDICTION, 2 * tokens / 1e6, step)

    def _tokens(self, job: TextJob, request: Predict) -> float:
        if self.store.find(*request.tokens) is not None:
            return padded_tokens(self.store, request.tokens)
        bias = job.hp.bias
        return bias.texts * min(job.settings.task.max_length, PIECES_PER_WORD * bias.tokens)
