"""Execution of one request: its result is found in the store, or computed under a lock and stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import torch

from knot_runner.engine import loop
from knot_runner.engine.requests import Predict, StageRequest, Train, request_key, request_title
from knot_runner.engine.store import Artefact, Store
from knot_runner.util.files import BusyError

#: (title, finished steps, all steps, short text) -> None
ProgressCallback = Callable[[str, int, int, str], None]
#: (folder of the store, key): the identity of a request
StageKey = tuple[str, str]
#: Seconds between two attempts at a request that another process is computing.
RETRY = 0.2
#: Progress text meanwhile.
BUSY = "another process is at it"


def key_of(request: StageRequest) -> StageKey:
    """Where the store keeps this request's result."""
    return ("predictions" if isinstance(request, Predict) else request.stage), request_key(request)


def missing_of(requests: Iterable[StageRequest], store: Store) -> dict[StageKey, StageRequest]:
    """The requests whose results are not in ``store``, each once, in order."""
    missing: dict[StageKey, StageRequest] = {}
    for request in requests:
        key = key_of(request)
        if key not in missing and store.find(*key) is None:
            missing[key] = request
    return missing


def run_one(request: StageRequest, place: loop.Place, watch: ProgressCallback) -> Artefact:
    """Compute one request under its lock, unless it is finished by now.

    Raises :class:`BusyError` at once when another process (or thread) is computing it.
    """
    key, name = key_of(request), request_title(request)

    def report(done: int, total: int, text: str) -> None:
        watch(name, done, total, text)

    with place.store.lock(*key, wait=False):
        found = place.store.find(*key)
        if found is not None:
            return found
        if isinstance(request, Train):
            tensors, facts = loop.train_network(request, place, place.store.folder(*key), report)
        elif isinstance(request, Predict):
            tensors, facts = loop.predict_network(request, place, report)
        else:
            tensors, facts = request.carry_out(place, place.store.folder(*key), report)
        watch(name, 1, 1, "done")
        facts |= {"device": str(place.device), "torch": torch.__version__, "threads": torch.get_num_threads()}
        return place.store.put(*key, tensors, {"title": name, **facts})


def run_each(requests: Iterable[StageRequest], place: loop.Place, watch: ProgressCallback) -> None:
    """:func:`run_one` of every request in order; those that another process is computing come last."""
    waiting, busy = deque(requests), 0
    while waiting:
        request = waiting.popleft()
        try:
            run_one(request, place, watch)
            busy = 0
        except BusyError:
            watch(request_title(request), 0, 1, BUSY)
            waiting.append(request)
            busy += 1
            if busy >= len(waiting):  # all remaining ones
                time.sleep(RETRY)
