"""Images that take long to read are saved, mapped by later runs, and read again if their files change."""

import shutil

import numpy as np
import pytest
import torch

from knot_runner.engine.store import TENSORS, Store
from knot_runner.engine.tensor_file import mapped_arrays
from knot_runner.pipelines import kept_images
from knot_runner.provenance import fingerprints
from knot_runner.util.shared_memory import map_file, place_in_file
from knot_runner.util.workers import SharedArrays
from tests import image_files
from tests.of_papers import of_papers
from tests.runs import run

TINY = [
    "task=femnist", "task.source=local", "task.shape=[1,8,8]", "task.local.train=[train]", "task.local.test=[test]",
    "model.hidden=[8]", "training.rounds=1", "training.local_epochs=1", "training.clients_per_round=2",
    "training.batch_size=8", "training.small_clients=allow", "hardware.num_workers=1",
]  # fmt: skip


def written(folder, change=0):
    """Three writers with ten images of 8x8 each."""
    for part, count in (("train", 8), ("test", 2)):
        draws = np.random.default_rng(count + change)
        image_files.leaf(folder / part / "all.json", {
            name: ((draws.integers(0, 256, (count, 64)) / 255).tolist(), draws.integers(0, 62, count).tolist())
            for name in "abc"
        })  # fmt: skip


def again(tmp_path, *more, out="kept", small=TINY):
    """Return the result of a run and delete its folder; the artifacts in ``out`` stay for the next run."""
    record = run(tmp_path / out, *small, f"paths.data_dir={tmp_path / 'data'}", *more)
    found = {key: record.result[key] for key in ("data", "files", "metrics", "notes", "run_id")}
    weights = (record.folder / "model.safetensors").read_bytes() if small is TINY else b""
    shutil.rmtree(record.folder)
    return found, weights


@pytest.fixture
def read(monkeypatch):
    """How often files are read; what takes a moment counts as slow, and files just written as settled: else what is
    recorded of them would change a moment later."""
    monkeypatch.setattr(kept_images, "SLOW", 0.0)
    monkeypatch.setattr(fingerprints, "TICK", -1)
    counted, real = [], kept_images._keep
    monkeypatch.setattr(kept_images, "_keep", lambda *given: (counted.append(1), real(*given))[1])
    return counted


KD = ["method=kd", "training=small", "training.local.epochs=1", "training.distill.epochs=1", "model=cnn_4"]
TASK = [words for words in TINY if words.startswith("task")]


@pytest.mark.parametrize("small", of_papers([
    pytest.param(TINY, id="fedavg"), pytest.param([*TASK, *KD], id="kd"),
]))  # fmt: skip
def test_run_on_kept_images_equals_fresh_read(tmp_path, monkeypatch, read, small):
    written(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(kept_images, "SLOW", 1e9)
        wanted = again(tmp_path, out="never", small=small)
    assert not (tmp_path / "never" / "artifacts" / "images_read").exists()
    for workers in ([], [], ["hardware.num_workers=2"] if small is TINY else []):
        assert again(tmp_path, *workers, small=small) == wanted
    assert read == [1]


def test_run_rereads_kept_images_of_changed_files(tmp_path, read):
    written(tmp_path / "data")
    before = again(tmp_path)
    written(tmp_path / "data", change=1)
    after = again(tmp_path)
    assert read == [1, 1] and after[0]["data"] != before[0]["data"]
    (tmp_path / "data" / "SHA256SUMS").write_text("")
    assert again(tmp_path)[0]["data"] == after[0]["data"] and read == [1, 1, 1]


def test_damaged_kept_images_are_read_again(tmp_path, read, capsys):
    written(tmp_path / "data")
    wanted = again(tmp_path)
    (kept,) = tmp_path.glob("kept/artifacts/images_read/*/tensors.safetensors")
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    assert again(tmp_path) == wanted and read == [1, 1]
    assert "tensors.safetensors: does not match its checksum" in capsys.readouterr().err


def test_images_of_plug_ins_are_not_kept(tmp_path, read):
    written(tmp_path / "data")
    (tmp_path / "own.py").write_text("")
    again(tmp_path, f"plugins=['{tmp_path / 'own.py'}']")
    assert not read


def test_mapped_arrays_are_not_copied_for_workers(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(5).to(torch.uint8), "c": torch.tensor([2**40])}
    made = Store(tmp_path).put("stage", "key", tensors, {})
    arrays = mapped_arrays(made.folder / TENSORS)
    assert {name: array.tolist() for name, array in arrays.items()} == {n: t.tolist() for n, t in tensors.items()}
    own = np.arange(4)
    shared = SharedArrays([arrays["b"], own, arrays["a"], arrays["a"].T, np.zeros((0, 2))])
    assert shared.memory.size == 64 + 64
    assert [array.tolist() for array in shared.arrays()] == [
        [0, 1, 2, 3, 4], [0, 1, 2, 3], [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]], [],
    ]  # fmt: skip
    before = (made.folder / TENSORS).read_bytes()
    arrays["a"][0, 0] = 9  # stays in this process
    assert (made.folder / TENSORS).read_bytes() == before and shared.arrays()[2][0, 0] == 9
    assert place_in_file(own) is None
    memory, at = place_in_file(arrays["b"][2:])
    assert memory.map[at : at + 3] == bytes([2, 3, 4])
    assert map_file(made.folder / TENSORS).map[:] == before
