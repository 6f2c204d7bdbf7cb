"""Tensors and images in memory that processes share."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ImageData
from knot_runner.processes import Memory, aligned


def view(memory: Memory, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of ``memory`` from byte ``start`` on; it keeps the memory alive."""
    if not prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory.map, dtype=dtype, count=prod(shape), offset=start).view(shape)


class SharedImages:
    """Several :class:`ImageData` copied into one shared memory; :meth:`images` gives them back in any process."""

    def __init__(self, *images: ImageData) -> None:
        tensors = [tensor for data in images for tensor in (data.pixels, data.labels, data.mean, data.std)]
        self._places: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        end = 0
        for tensor in tensors:
            self._places.append((end, tuple(tensor.shape), tensor.dtype))
            end += aligned(tensor.numel() * tensor.element_size())
        self.memory = Memory(max(end, 1))
        for tensor, place in zip(tensors, self._places, strict=True):
            view(self.memory, *place).copy_(tensor)

    def images(self) -> list[ImageData]:
        """Views of what was given, in that order."""
        tensors = [view(self.memory, *place) for place in self._places]
        return [ImageData(*tensors[at : at + 4]) for at in range(0, len(tensors), 4)]
