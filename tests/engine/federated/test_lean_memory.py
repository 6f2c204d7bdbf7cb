"""Shared memory holds what was put in, and slots are allocated so that nothing in use is overwritten."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.engine.federated.cohort import ROWS_OF_MANY
from knot_runner.engine.federated.lean.pool import SlotAllocator
from knot_runner.engine.federated.lean.worker import SharedData, Slots
from knot_runner.util.shared_memory import ALIGNED
from tests.engine.federated.cases import CLASSES, GREY, MODELS, images


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_images_come_back_as_they_were_and_aligned(kind):
    given_ones = images(GREY, 7, kind=kind), images(GREY, 3, 1, kind=kind)
    shared = SharedData(*given_ones)
    for data, found in zip(given_ones, shared.views(), strict=True):
        for name in ("pixels", "labels", "mean", "std"):
            tensor = getattr(found, name)
            assert torch.equal(tensor, getattr(data, name)) and tensor.dtype == getattr(data, name).dtype
            assert tensor.data_ptr() % ALIGNED == 0
    shared.memory.close()


def test_a_slot_holds_a_model_or_a_chunk_of_logits():
    slots = Slots.make(2, [MODELS["resnet_batch"]], torch.float64)
    for slot in (0, 1):
        weights, buffers = slots.model(slot)
        weights.fill_(slot + 1), buffers.fill_(slot + 3)
    assert [float(v.sum() / len(v)) for slot in (0, 1) for v in slots.model(slot)] == [1, 3, 2, 4]
    slots.logits(0, ROWS_OF_MANY, CLASSES).fill_(7)
    assert float(slots.model(1)[0].max()) == 2
    slots.memory.close()


def allocator(count):
    slots = Slots.make(count, [MODELS["mlp"]], torch.float32)
    return slots, SlotAllocator(slots, range(count))


def test_what_requests_share_is_written_once():
    slots, allocated = allocator(3)
    vector = torch.ones(slots.sizes[0][0])
    first = allocated.acquire(vector)
    vector.fill_(5)  # had it been written again, this would show
    assert allocated.acquire(vector) == first and float(slots.model(first)[0][0]) == 1
    allocated.clear()
    assert float(slots.model(allocated.acquire(vector))[0][0]) == 5


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 3))
def test_nothing_that_is_being_read_is_overwritten(wanted, readers):
    slots, allocated = allocator(readers)
    vectors = [torch.full((slots.sizes[0][0],), float(number)) for number in range(6)]
    reading = []
    for number in wanted:
        if len(reading) == readers:
            allocated.release(reading.pop(0)[1])
        reading.append((number, allocated.acquire(vectors[number])))
        assert all(float(slots.model(slot)[0][-1]) == value for value, slot in reading)
    slots.memory.close()
