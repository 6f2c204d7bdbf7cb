"""Artifacts: whole or not there, and never a wrong number."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from knot_runner.engine.store import Store
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.util.files import BusyError, digest_of_parts, write_atomic
from tests.disk import damage_in_place
from tests.golden.messages import refuses


def test_artifact_refuses_a_changed_file(tmp_path):
    """Also where its size and time are kept."""
    store = Store(tmp_path)
    artifact = store.put("local", "k", {"w": torch.zeros(100)}, {})
    assert not store.find("local", "k").tensors()["w"].any()  # so that its digest is known
    damage_in_place(artifact.folder / "tensors.safetensors")
    with refuses():
        artifact.tensors()
    assert store.find("local", "k") is None and Store(tmp_path).find("local", "k") is None


def put(store, key="k", value=1.0):
    return store.put("local", key, {"w": torch.full((9,), value)}, {"seconds": value}, {"rounds.jsonl": f"{value}\n"})


@pytest.mark.parametrize("name", ["info.json", "tensors.safetensors", "rounds.jsonl"])
@pytest.mark.parametrize("change", ["flip", "cut", "gone", "other"])
def test_store_sets_damaged_artifacts_aside(tmp_path, name, change, capsys):
    store = Store(tmp_path)
    path, other = put(store).folder / name, put(store, "other", 2.0).folder / name
    whole = path.read_bytes()
    changed = {"flip": whole[:-3] + bytes([whole[-3] ^ 2]) + whole[-2:], "cut": whole[:-1], "other": other.read_bytes()}
    path.unlink() if change == "gone" else path.write_bytes(changed[change])
    if (name, change) == ("info.json", "cut"):  # the last line break
        assert store.find("local", "k").tensors()["w"][0] == 1.0
        return
    assert store.find("local", "k") is None
    with store.lock("local", "k"):
        said = capsys.readouterr().err
        assert not (path.parent / "info.json").exists()
        if (name, change) != ("info.json", "gone"):  # that is unfinished work
            assert str(path) in said and "set-aside-1" in said and len(said.splitlines()) == 1
        put(store)
    assert store.find("local", "k").tensors()["w"][0] == 1.0
    assert store.get("local", "other").read("rounds.jsonl") == b"2.0\n"


def test_store_put_removes_commits_and_temporary_files(tmp_path):
    for name in ("commit.json", "state-0.safetensors", "state-1.safetensors", "info.json.1-2.tmp"):
        (tmp_path / "local" / "k").mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / "k" / name).write_text("x")
    folder = put(Store(tmp_path)).folder
    assert sorted(path.name for path in folder.iterdir()) == ["info.json", "rounds.jsonl", "tensors.safetensors"]


def test_store_lock_raises_when_busy_and_not_waiting(tmp_path):
    store = Store(tmp_path)
    with store.lock("local", "k"):
        with pytest.raises(BusyError), store.lock("local", "k", wait=False):
            raise AssertionError("two hold one lock")
        with store.lock("local", "other", wait=False):
            pass
    with store.lock("local", "k", wait=False):
        pass


TYPES = [torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16, torch.int8,
         torch.uint8, torch.bool]  # fmt: skip
SHAPES = [(), (0, 3), (1,), (2, 3), (5,)]


def of(dtype, shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(TYPES), st.sampled_from(SHAPES)), max_size=6))
def test_tensor_parts_matches_the_save_of_safetensors(chosen):
    tensors = {name: of(*about) for name, about in chosen.items() if name != "__metadata__"}
    assert b"".join(tensor_parts(tensors)) == save(tensors)


def test_tensor_parts_saves_non_contiguous_and_gradient_tensors():
    tensors = {"turned": torch.randn(3, 4).t(), "learned": torch.randn(2, requires_grad=True)}
    read = load(b"".join(tensor_parts(tensors)))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(TypeError, match=r"wave: tensors of torch.complex64 cannot be saved"):
        tensor_parts({"wave": torch.zeros(1, dtype=torch.complex64)})


def test_tensor_parts_copies_no_tensor(tmp_path):
    """A copy of each would double what a run of many clients takes."""
    tensors = {name: torch.zeros(1000) for name in "ab"}
    parts = tensor_parts(tensors)
    write_atomic(tmp_path / "file", parts)
    assert digest_of_parts(parts) == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    for tensor in tensors.values():
        tensor += 1
    assert parts[1][:4] == parts[2][:4] == torch.ones(1).numpy().tobytes()
