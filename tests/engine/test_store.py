"""Artefacts: whole or not there, and never a wrong number."""

import multiprocessing

import pytest
import torch

from knot_runner.engine.store import Store
from knot_runner.errors import UserError
from knot_runner.files import BusyError


def test_put_and_get(tmp_path):
    store = Store(tmp_path)
    assert store.find("local", "k") is None
    store.put("local", "k", {"w": torch.arange(3)}, {"seconds": 1.0})
    artefact = store.get("local", "k")
    assert artefact.tensors()["w"].tolist() == [0, 1, 2]
    assert artefact.info["seconds"] == 1.0


def test_a_changed_file_is_refused(tmp_path):
    artefact = Store(tmp_path).put("local", "k", {"w": torch.zeros(100)}, {})
    path = artefact.folder / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="does not match its digest"):
        artefact.tensors()


def test_an_unfinished_one_is_not_there(tmp_path):
    store = Store(tmp_path)
    store.put("local", "k", {"w": torch.zeros(1)}, {})
    (store.folder("local", "k") / "info.json").unlink()
    assert store.find("local", "k") is None
    with pytest.raises(UserError, match="repeat the command"):
        store.get("local", "k")


def _work_once(root, counter):
    store = Store(root)
    with store.lock("local", "k"):
        if store.find("local", "k") is None:
            with counter.get_lock():
                counter.value += 1
            store.put("local", "k", {"w": torch.zeros(1)}, {})


def test_two_processes_do_the_work_once(tmp_path):
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    workers = [context.Process(target=_work_once, args=(tmp_path, counter)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert counter.value == 1


def test_a_lock_that_is_not_waited_for(tmp_path):
    store = Store(tmp_path)
    with store.lock("local", "k"):
        with pytest.raises(BusyError), store.lock("local", "k", wait=False):
            raise AssertionError("two hold one lock")
        with store.lock("local", "other", wait=False):
            pass
    with store.lock("local", "k", wait=False):
        pass
