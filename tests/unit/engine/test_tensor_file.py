"""Tensors are written as safetensors' own ``save`` would, without its copies."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.util.files import digest_of_parts, write_atomic

TYPES = [torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16, torch.int8,
         torch.uint8, torch.bool]  # fmt: skip
SHAPES = [(), (0, 3), (1,), (2, 3), (5,)]


def of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(TYPES), st.sampled_from(SHAPES)), max_size=6))
def test_tensor_parts_matches_the_save_of_safetensors(chosen):
    tensors = {name: of(*about) for name, about in chosen.items() if name != "__metadata__"}
    assert b"".join(tensor_parts(tensors)) == save(tensors)


def test_tensor_parts_saves_non_contiguous_and_gradient_tensors():
    tensors = {"turned": torch.randn(3, 4).t(), "learned": torch.randn(2, requires_grad=True)}
    read = load(b"".join(tensor_parts(tensors)))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_tensor_parts_copies_only_small_tensors():
    """A copy of each would double what a run of many clients takes."""
    large = {name: torch.zeros(1 << 18) for name in "ab"}  # float32: just large enough
    small = {f"small {i}": torch.zeros(1000) for i in range(50)}
    parts = tensor_parts({**large, **small})
    assert [len(part) for part in parts[1:]] == [1 << 20, 1 << 20, 50 * 4000]
    for tensor in large.values():
        tensor += 1
    assert parts[1][:4] == parts[2][:4] == torch.ones(1).numpy().tobytes()


def test_tensor_parts_names_an_unsupported_type():
    with pytest.raises(TypeError, match=r"wave: tensors of torch.complex64 cannot be saved"):
        tensor_parts({"wave": torch.zeros(1, dtype=torch.complex64)})


def test_parts_are_one_file_and_one_digest(tmp_path):
    parts = [b"one ", memoryview(b"and "), b"two"]
    write_atomic(tmp_path / "file", parts)
    assert (tmp_path / "file").read_bytes() == b"one and two"
    assert digest_of_parts(parts) == hashlib.sha256(b"one and two").hexdigest()
