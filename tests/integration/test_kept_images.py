"""Images that took long to read are kept, mapped by what follows, and read again when their files are others."""

import json
import shutil

import numpy as np
import pytest
import torch

from knot_runner.cli.main import main
from knot_runner.engine.store import Store
from knot_runner.engine.tensor_file import mapped_arrays
from knot_runner.pipelines.runs import kept_images
from knot_runner.provenance import fingerprints
from knot_runner.util.shared_memory import map_file, place_in_file
from knot_runner.util.workers import SharedArrays

TINY = [
    "task=femnist", "task.source=local", "task.shape=[1,8,8]", "task.local.train=[train]", "task.local.test=[test]",
    "model.hidden=[8]", "training.rounds=1", "training.epochs=1", "training.participants=2", "training.batch=8",
    "training.small_clients=allow", "hardware.workers=1",
]  # fmt: skip


def written(folder, change=0):
    """Three writers with ten images of 8x8 each."""
    for part, count in (("train", 8), ("test", 2)):
        draws = np.random.default_rng(count + change)
        users = {
            name: {
                "x": (draws.integers(0, 256, (count, 64)) / 255).tolist(),
                "y": draws.integers(0, 62, count).tolist(),
            }
            for name in "abc"
        }
        content = {"users": list(users), "num_samples": [count] * 3, "user_data": users}
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "all.json").write_text(json.dumps(content))


def run(tmp_path, out, *more):
    assert main([*TINY, f"paths.data={tmp_path / 'data'}", f"paths.out={tmp_path / out}", *more]) == 0
    (folder,) = [path.parent for path in (tmp_path / out).glob("[!a]*/*/*/result.json")]
    result = json.loads((folder / "result.json").read_text())
    found = {key: result[key] for key in ("data", "files", "metrics", "notes", "label_counts", "run_id")}
    return found, (folder / "model.safetensors").read_bytes()


def again(tmp_path, *more):
    for path in tmp_path.glob("kept/[!a]*"):
        shutil.rmtree(path)
    return run(tmp_path, "kept", *more)


@pytest.fixture
def read(monkeypatch):
    """How often files are read; what takes a moment counts as slow, and files just written as settled: else what is
    recorded of them would change a moment later."""
    monkeypatch.setattr(kept_images, "SLOW", 0.0)
    monkeypatch.setattr(fingerprints, "TICK", -1)
    counted, real = [], kept_images._keep
    monkeypatch.setattr(kept_images, "_keep", lambda *given: (counted.append(1), real(*given))[1])
    return counted


def test_runs_on_kept_images_are_the_same(tmp_path, monkeypatch, read):
    written(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(kept_images, "SLOW", 1e9)
        wanted = run(tmp_path, "never")
    assert not (tmp_path / "never" / "artefacts" / "images_read").exists()
    for workers in ([], [], ["hardware.workers=2"]):
        assert again(tmp_path, *workers) == wanted
    assert read == [1]


KINDS = {
    "kd": ["method=kd", "training=kd", "training.local.epochs=1", "training.distil.epochs=1", "model=cnn_4"],
    "distances": ["method=dataset_distance", "partition=natural"],
    "coreset": ["method=coreset", "method.participants=3", "method.fedwad.support=5", "method.epochs=2"],
    "probe": ["method=temperature_probe"],
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "kd" else pytest.mark.thorough) for kind in KINDS]
)
def test_other_kinds_of_run_use_what_was_kept(tmp_path, monkeypatch, read, kind):
    written(tmp_path / "data")
    task = [words for words in TINY if words.startswith("task")]

    def found(out):
        assert main([*task, f"paths.data={tmp_path / 'data'}", f"paths.out={tmp_path / out}", *KINDS[kind]]) == 0
        (path,) = (tmp_path / out).glob("[!a]*/*/*/result.json")
        result = json.loads(path.read_text())
        shutil.rmtree(path.parent)
        return {key: value for key, value in result.items() if key in ("data", "files", "metrics", "notes", "run_id")}

    with monkeypatch.context() as patch:
        patch.setattr(kept_images, "SLOW", 1e9)
        wanted = found("never")
    assert found("kept") == wanted and found("kept") == wanted and read == [1]


def test_files_that_changed_are_read_again(tmp_path, read):
    written(tmp_path / "data")
    before = again(tmp_path)
    written(tmp_path / "data", change=1)
    after = again(tmp_path)
    assert read == [1, 1] and after[0]["data"] != before[0]["data"]
    (tmp_path / "data" / "SHA256SUMS").write_text("")
    assert again(tmp_path)[0]["data"] == after[0]["data"] and read == [1, 1, 1]


def test_damaged_arrays_are_set_aside_and_the_files_read_again(tmp_path, read, capsys):
    written(tmp_path / "data")
    wanted = again(tmp_path)
    (kept,) = tmp_path.glob("kept/artefacts/images_read/*/tensors.safetensors")
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    assert again(tmp_path) == wanted and read == [1, 1]
    assert "tensors.safetensors: does not match its digest" in capsys.readouterr().err


def test_images_of_plug_ins_are_not_kept(tmp_path, read):
    written(tmp_path / "data")
    (tmp_path / "own.py").write_text("")
    again(tmp_path, f"plugins=['{tmp_path / 'own.py'}']")
    assert not read


def test_arrays_on_a_mapped_file_are_not_copied_for_workers(tmp_path):
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.arange(5, dtype=torch.uint8),
        "c": torch.tensor([2**40]),
    }
    made = Store(tmp_path).put("stage", "key", tensors, {})
    arrays = mapped_arrays(made.tensors_path)
    assert {name: array.tolist() for name, array in arrays.items()} == {n: t.tolist() for n, t in tensors.items()}
    own = np.arange(4)
    shared = SharedArrays([arrays["b"], own, arrays["a"], arrays["a"].T, np.zeros((0, 2))])
    assert shared.memory.size == 64 + 64
    assert [array.tolist() for array in shared.arrays()] == [
        [0, 1, 2, 3, 4], [0, 1, 2, 3], [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]], [],
    ]  # fmt: skip
    before = made.tensors_path.read_bytes()
    arrays["a"][0, 0] = 9  # stays in this process
    assert made.tensors_path.read_bytes() == before and shared.arrays()[2][0, 0] == 9
    assert place_in_file(own) is None
    memory, at = place_in_file(arrays["b"][2:])
    assert memory.map[at : at + 3] == bytes([2, 3, 4])
    assert map_file(made.tensors_path).map[:] == before
