"""Shared memory holds what was put in, in parts that do not overlap."""

import pytest
import torch

from knot_runner.engine.federated.cohort import ROWS_OF_MANY
from knot_runner.engine.federated.lean.worker import SharedData, Slots
from knot_runner.util.shared_memory import ALIGNED
from tests.unit.engine.federated.cases import CLASSES, GREY, MODELS, images


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


def test_a_slot_holds_a_model_and_its_result_or_logits():
    slots = Slots.make(2, [MODELS["resnet_batch"]], torch.float64)
    for slot in (0, 1):
        for number, vectors in enumerate((slots.model(slot, 0), slots.result(slot, 0))):
            weights, buffers = vectors
            weights.fill_(slot + 1 + 4 * number), buffers.fill_(slot + 3 + 4 * number)
        slots.control(slot, 0).fill_(9)
    parts = [part for slot in (0, 1) for part in (*slots.model(slot, 0), *slots.result(slot, 0))]
    assert [float(part.mean()) for part in parts] == [1, 3, 5, 7, 2, 4, 6, 8]
    slots.logits(0, ROWS_OF_MANY, CLASSES).fill_(11)
    assert float(slots.model(1, 0)[0].max()) == 2
    slots.memory.close()
