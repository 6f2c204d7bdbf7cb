"""What trainings and predictions on texts take: some dozens of steps of the real ones, in a store of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from knot_runner.config.settings import Settings
from knot_runner.engine import loop
from knot_runner.engine.commit import Checkpoint, save_bytes
from knot_runner.engine.execute import Executor
from knot_runner.engine.hardware import prepare_device
from knot_runner.engine.requests import Network, Predict, Ref, Train
from knot_runner.engine.seeds import generator
from knot_runner.engine.stages import key_of
from knot_runner.engine.store import Artefact, Store
from knot_runner.estimate.child import Tell
from knot_runner.estimate.kinds import distil_kind, teacher_kind
from knot_runner.models.tokens import Encoded, batches
from knot_runner.pipelines.text_federation import select_texts

#: The kind of all predictions; a unit is a million tokens, padding included.
PREDICTION = "predictions"
START_KIND = "starts"
#: A commit of training holds the model, two moments, and often the best weights so far.
MODELS_PER_COMMIT = 4
#: What is timed gets so many seconds at least, ...
MIN_SECONDS_TIMED = 1.0
#: ... and predictions no more than so many.
MAX_PREDICTING = 2.0
#: Teachers that are timed; their networks are alike but in federations of unlike architectures.
MAX_TEACHERS = 2
#: Texts that are predicted.
SOME = 1280
#: Where the weights lie that predictions are timed with.
STAND_IN: Ref = ("local", "stand-in")
SOME_TEXTS: Ref = ("tokens", "some")
#: (moment, steps that are done)
Step = tuple[float, int]


@dataclass(frozen=True)
class Readable(Store):
    """A store of its own, that also finds (and never changes) what is in the store ``behind``."""

    behind: Store = Store(Path())

    def find(self, stage: str, key: str) -> Artefact | None:
        return super().find(stage, key) or self.behind.find(stage, key)


class _EnoughError(Exception):
    """Ends a training that has been looked at for long enough."""


@dataclass(frozen=True)
class Rates:
    """Seconds of predicting one padded token and of a commit; bytes of a model."""

    predicting: float
    commit: float
    model: int


class Timer:
    """Times pieces of jobs on texts in ``store`` and tells what it finds as it goes."""

    def __init__(self, tell: Tell, store: Readable, settings: Settings, data_root: Path | None) -> None:
        self._tell, self._store, self._settings, self._data_root = tell, store, settings, data_root

    def measure(self, requests: dict[str, Train], network: Network, tokens: Ref, deadline: float) -> None:
        """Tell the cost of every kind in ``requests``, and of predicting ``tokens``, by about the moment ``deadline``.

        What is told again replaces what was told: a training that is not reached in time is taken to be as fast, token
        for token, as another.
        """
        teachers = {kind: request for kind, request in requests.items() if request.start is None}
        students = {kind: request for kind, request in requests.items() if request.start is not None}
        timed = dict([*list(teachers.items())[:MAX_TEACHERS], *students.items()])
        rates = self._rates(network, tokens, min(_share(deadline, 1 + len(timed)), MAX_PREDICTING))
        self._tell("cost", PREDICTION, rates.predicting * 1e6, None)
        found: dict[str, float] = {}
        for number, (kind, request) in enumerate(timed.items()):
            self._stand_in(request)
            rate = self._timed(request, _share(deadline, len(timed) - number))
            if rate is not None:
                found[kind] = rate
            for other, asked in requests.items():
                like = [found[one] for one in found if (one in students) == (other in students)] or [*found.values()]
                self._told(other, asked, found.get(other) or _mean(like), rates)

    def _told(self, kind: str, request: Train, per_token: float | None, rates: Rates) -> None:
        """An epoch: its steps, the valid part, a commit."""
        if per_token is None:
            return
        steps = sum(training_batches(self._store, request, 1))
        valid = padded_tokens(self._store, request.valid.tokens)
        seconds = per_token * steps + rates.predicting * valid + rates.commit
        self._tell("cost", kind, seconds, rates.model)

    # ------------------------------------------------------------------------------------------------ trainings

    def _timed(self, request: Train, quota: float) -> float | None:
        """Seconds a padded token, in this process; None where two steps take longer than ``quota``."""
        seen: list[Step] = []

        def watch(name: str, done: int, total: int, text: str) -> None:
            if text != "done":
                seen.append((time.monotonic(), done))
            if seen[-1][0] - seen[0][0] > quota:
                raise _EnoughError

        alone = dataclasses.replace(self._settings.hardware, workers=1)
        with (
            contextlib.suppress(_EnoughError),
            Executor(self._store, alone, self._data_root, self._settings.plugins, watch) as executor,
        ):
            executor([request])
        return self._rate(request, seen)

    def _rate(self, request: Train, steps: list[Step]) -> float | None:
        """Seconds a padded token between reports of one epoch; of a finished training, over its epochs."""
        sizes = training_batches(self._store, request, 1)
        made = self._store.find(*key_of(request))
        if made is not None and len(steps) < 3:
            return made.info["seconds"] / request.training.epochs / sum(sizes)
        seconds, tokens = 0.0, 0
        for (before, first), (after, last) in zip(steps, steps[1:], strict=False):
            epoch, step = divmod(last - 1, len(sizes))
            if last == first + 1 and step:  # before the first of an epoch lies the valid part
                seconds += after - before
                tokens += training_batches(self._store, request, epoch + 1)[step]
        return seconds / tokens if tokens else None

    def _stand_in(self, request: Train) -> None:
        """Teachers' weights and soft labels for a student, which take as long whatever they say."""
        if request.start is not None and self._store.find(*request.start) is None:
            self._store.put(*request.start, loop.build_network(request.network).state_dict(), {})
        for part in (request.train, request.valid):
            texts = len(_lengths(self._store, part.tokens))
            for ref in part.inputs.values():
                if self._store.find(*ref) is None:
                    self._store.put(*ref, {"logits": torch.randn(texts, request.network.classes)}, {})

    def _rates(self, network: Network, tokens: Ref, quota: float) -> Rates:
        """Predict some texts, drawn at random; commit once. The first batch is not counted."""
        place = loop.Place(self._store, prepare_device(self._settings.hardware), self._data_root)
        weights = loop.build_network(network).state_dict()
        model = len(save_bytes(weights))
        self._store.put(*STAND_IN, weights, {})
        some = self._some(tokens)
        seen: list[Step] = []

        def report(done: int, total: int, text: str) -> None:
            seen.append((time.monotonic(), done))
            if seen[-1][0] - seen[0][0] > quota:
                raise _EnoughError

        seen.append((time.monotonic(), 0))
        with contextlib.suppress(_EnoughError):
            loop.predict_network(Predict("probe", "", network, STAND_IN, some), place, report)
        seen = seen[1:] if len(seen) > 2 else seen
        predicted = sum(evaluation_batches(self._store, some)[seen[0][1] : seen[-1][1]])
        began = time.monotonic()
        many = {f"{i}.{name}": tensor.clone() for i in range(MODELS_PER_COMMIT) for name, tensor in weights.items()}
        Checkpoint(self._store.root / "commit").save(0, many, {}, [{}])
        return Rates((seen[-1][0] - seen[0][0]) / predicted, time.monotonic() - began, model)

    def _some(self, tokens: Ref) -> Ref:
        """:data:`SOME` of the encoded texts."""
        tensors = self._store.get(*tokens).tensors()
        whole = Encoded(tensors["ids"], tensors["offsets"], tensors["second"])
        rows = np.random.default_rng(0).permutation(len(whole))[:SOME]
        self._store.put(*SOME_TEXTS, select_texts(whole, rows).tensors(), {})
        return SOME_TEXTS


def training_kind(request: Train) -> str:
    """Trainings of one kind take alike per epoch."""
    if request.stage == "distil":
        return distil_kind(request.training.batch, request.objective.settings["loss"])
    return teacher_kind(request.party, request.training.batch)


def padded_tokens(store: Store, tokens: Ref) -> int:
    """Tokens, padding included, of an encoded part when it is predicted."""
    return sum(evaluation_batches(store, tokens))


@functools.cache
def evaluation_batches(store: Store, tokens: Ref) -> list[int]:
    """Tokens, padding included, of the batches that an encoded part is predicted in."""
    lengths = _lengths(store, tokens)
    return [len(index) * int(lengths[index].max()) for index in batches(lengths, loop.EVALUATION_BATCH, None)]


def training_batches(store: Store, request: Train, epoch: int) -> list[int]:
    """Tokens, padding included, of every step of an epoch, as :mod:`knot_runner.engine.loop` cuts it."""
    keys = (request.stage, request.party, epoch)
    return _training_batches(store, request.train.tokens, request.training.batch, (request.seed, "order", *keys))


@functools.cache
def _training_batches(store: Store, tokens: Ref, batch: int, seeds: tuple[Any, ...]) -> list[int]:
    lengths = _lengths(store, tokens)
    return [len(index) * int(lengths[index].max()) for index in batches(lengths, batch, generator(*seeds))]


@functools.cache
def _lengths(store: Store, tokens: Ref) -> torch.Tensor:
    return store.get(*tokens).tensors()["offsets"].diff()


def _share(deadline: float, parts: int) -> float:
    """Seconds for the next of ``parts`` that are to be through by ``deadline``."""
    return max(MIN_SECONDS_TIMED, (deadline - time.monotonic()) / parts)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
