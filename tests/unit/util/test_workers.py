"""A worker process: its replies and errors, and that a dead one leaves nothing behind."""

import json
import os
import signal
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from knot_runner.util.errors import DiskError, UserError
from knot_runner.util.processes import prepared
from knot_runner.util.workers import HandlerMessage, SharedArrays, WorkerDied, WorkerProcess
from tests.forked import PRELOADED


def prepare(send, arrays):
    if arrays is None:
        raise UserError("plugins: no_such_plugin")

    def handle(request):
        case, value = request
        if case == "progress":
            send("half")
        if case == "full":
            raise DiskError(value)
        if case == "bug":
            raise IndexError(value)
        if case == "exit":
            os._exit(value)
        return os.getpid(), sum(float(array.sum()) for array in arrays.arrays())

    return handle


@pytest.fixture
def worker():
    arrays = SharedArrays([np.ones((2, 3)), np.zeros((0, 4)), np.arange(5)])
    worker = WorkerProcess([], prepare, arrays)
    yield worker
    worker.reap()
    arrays.memory.close()


def asked(worker, case, value=None):
    worker.send((case, value))
    return worker.receive()


def test_receive_keeps_order_of_messages_and_replies(worker):
    worker.send(("progress", None))
    worker.send(("plain", None))
    assert worker.receive() == HandlerMessage("half")
    (first, second) = worker.receive(), worker.receive()
    assert first == second == (None, (worker.process.pid, 16.0))


def test_worker_process_keeps_user_errors_and_describes_others(worker):
    error, result = asked(worker, "full", "out: disk is full")
    assert type(error) is DiskError and str(error) == "out: disk is full" and result is None
    error, result = asked(worker, "bug", "far out")
    assert type(error) is RuntimeError and result is None
    assert str(error).startswith("in a worker process: Traceback") and "IndexError: far out" in str(error)
    assert asked(worker, "plain")[0] is None


def test_worker_process_repeats_setup_error_for_every_request():
    worker = WorkerProcess([], prepare, None)
    for _ in range(2):
        error, _ = asked(worker, "plain", ReadByNobody())
        assert type(error) is UserError and str(error) == "plugins: no_such_plugin"
    worker.reap()


class ReadByNobody:
    """What a worker does not survive reading."""

    def __reduce__(self):
        return os._exit, (1,)


def test_worker_process_exits_silently_without_parent(worker):
    """The system then resets the connection rather than ending it."""
    worker.send(("progress", None))
    assert worker.pipe.poll(30)
    process = worker.process
    worker.pipe.close()
    process.join(30)
    assert process.exitcode == 0


def test_worker_process_leaves_nothing_behind_after_death(worker):
    _, (first, _) = asked(worker, "plain")
    others = set(active_children())
    with pytest.raises(WorkerDied, match=r"^hardware\.num_workers: a worker process died"):
        asked(worker, "exit", 3)
    assert len(set(active_children())) == len(others) - 1 and not Path(f"/proc/{first}").exists()
    with pytest.raises(WorkerDied):
        asked(worker, "plain")


def surroundings(send):
    def handle(request):
        os.write(2, b"a word of the worker")
        return os.getppid(), os.environ.get(request)

    return handle


def in_forked_process(preloaded, report, log):
    """What a job of a sweep does: it has its own log and environment, and a worker."""
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
    os.environ["OF_THE_JOB"] = "its own"
    worker = WorkerProcess(preloaded, surroundings)
    worker.send("OF_THE_JOB")
    _, (parent, told) = worker.receive()
    Path(report).write_text(json.dumps([os.getppid(), parent, told]))


@pytest.mark.parametrize(("preloaded", "same"), [(["knot_runner.util.workers"], True), (["wave"], False)])
def test_worker_process_in_fork_reuses_fitting_server(tmp_path, preloaded, same):
    """A server of its own would import torch again."""
    arguments = (preloaded, str(tmp_path / "report"), str(tmp_path / "log"))
    process = prepared(PRELOADED).Process(target=in_forked_process, args=arguments)
    process.start()
    process.join(60)
    server, parent, told = json.loads((tmp_path / "report").read_text())
    assert (parent == server) == same
    assert told == "its own" and (tmp_path / "log").read_text() == "a word of the worker"


def test_ctrl_c_is_left_to_the_parent(worker):
    _, (pid, _) = asked(worker, "plain")
    os.kill(pid, signal.SIGINT)
    assert asked(worker, "plain")[1][0] == pid
