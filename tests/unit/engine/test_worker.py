"""A worker's life, in this process: what it answers to what it is asked."""

import multiprocessing
import signal

import pytest
import torch

from knot_runner.engine.loop import Place, key_of
from knot_runner.engine.worker_pool import Event, prepare_stages
from knot_runner.util.errors import UserError
from knot_runner.util.files import BusyError
from knot_runner.util.workers import serve
from tests.unit.engine.test_execute import ONE, fill, training


@pytest.fixture
def place(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    yield Place(fill(tmp_path), torch.device("cpu"), None)
    signal.signal(signal.SIGINT, before)


def answers(place, plugins, requests):
    """All messages of a worker that is sent ``requests`` and then left."""
    ours, theirs = multiprocessing.Pipe(duplex=True)
    for request in requests:
        ours.send(request)
    back, forth = multiprocessing.Pipe(duplex=False)
    serve(_TwoPipes(theirs, forth, len(requests)), prepare_stages, place, ONE, plugins)
    forth.close()
    found = []
    while back.poll():
        try:
            found.append(back.recv())
        except EOFError:
            break
    return found


class _TwoPipes:
    """Reads ``count`` messages from one pipe, then its end; writes into another, which outlives that."""

    def __init__(self, reading, writing, count):
        self._reading, self._left, self.send = reading, count, writing.send

    def _next(self, read):
        self._left -= 1
        if self._left < 0:
            raise EOFError
        return read()

    def recv(self):
        return self._next(self._reading.recv)

    def recv_bytes(self):
        return self._next(self._reading.recv_bytes)


def test_it_says_how_far_it_is_and_answers_each_request(place):
    request = training("A")
    with place.store.lock(*key_of(training("B"))):
        found = answers(place, [], [request, training("B"), request])
    events = [message for message in found if isinstance(message, Event)]
    problems = [error for error, _ in (message for message in found if isinstance(message, tuple))]
    assert events[-1] == Event("local A", 1, 1, "done") and found.index(events[-1]) == len(events) - 1
    assert [type(problem) for problem in problems] == [type(None), BusyError, type(None)]
    assert place.store.find(*key_of(request)) is not None


def test_without_its_plug_ins_every_request_gets_the_reason(place):
    found = answers(place, ["no_such_plugin"], [training("A"), training("B")])
    assert [type(error) for error, _ in found] == [UserError, UserError]
    assert str(found[1][0]).startswith("plugins: no_such_plugin")
    assert place.store.find(*key_of(training("A"))) is None
