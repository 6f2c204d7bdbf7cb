"""Labeled examples (images or texts) in an engine's memory, and batches of network inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.tokens import Encoded, batches

#: A batch of B examples: their positions (shape [B]) among all examples of the client or split, and the keyword
#: arguments of the network's ``forward``.
InputBatch = tuple[Tensor, Tensors]
Augment = Literal["none", "crop_flip"]
#: Names under which the tensors of :class:`ImageData` are stored.
IMAGE_TENSORS = ("pixels", "labels", "mean", "std")
#: Width in pixels of the border that ``augment=crop_flip`` adds on each side by reflection before it crops.
BORDER = 4


@dataclass(frozen=True)
class ImageData:
    """The images of all clients in one tensor.

    ``pixels``: N images with C channels, shape [N, C, H, W], as uint8 (in units of 1/255) or floating-point values.
    Models receive (value - mean) / std, with ``mean`` and ``std`` per channel, shape [C]. ``labels``: int64, shape [N].
    """

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def to(self, device: torch.device) -> ImageData:
        """Return the data on ``device``."""
        return ImageData(*(tensor.to(device) for tensor in self.tensors().values()))

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Return ``mean`` and ``std``, each of shape [C, 1, 1], in the units of ``pixels``."""
        unit = 1.0
        if self.pixels.dtype == torch.uint8:
            unit = 255.0
        return (self.mean * unit)[:, None, None], (self.std * unit)[:, None, None]

    def select(self, rows: Tensor, dtype: torch.dtype) -> ImageExamples:
        """Return the examples at the row numbers ``rows`` (shape [n]), with floating-point inputs in ``dtype``."""
        return ImageExamples(self, rows.to(self.labels.device), dtype)

    def tensors(self) -> Tensors:
        """Return all tensors that make up the data, by name. :func:`stored_data` is the inverse."""
        return {name: getattr(self, name) for name in IMAGE_TENSORS}


@dataclass(frozen=True)
class TextData:
    """The texts of all clients as token ids, and their labels.

    Token ids stay on the CPU. Batches are padded on the CPU and then moved to the training device. ``labels``, an int64
    tensor of shape [N], is on the training device.
    """

    texts: Encoded
    labels: Tensor

    def to(self, device: torch.device) -> TextData:
        """See :meth:`ImageData.to`."""
        return TextData(self.texts, self.labels.to(device))

    def select(self, rows: Tensor, dtype: torch.dtype) -> TextExamples:
        """See :meth:`ImageData.select`."""
        return TextExamples(self, rows.cpu())

    def tensors(self) -> Tensors:
        """See :meth:`ImageData.tensors`."""
        return self.texts.tensors() | {"labels": self.labels}


def stored_data(tensors: Tensors) -> ClientData:
    """Return the :class:`ImageData` or :class:`TextData` with these ``tensors``. Their names determine the class."""
    if "pixels" in tensors:
        return ImageData(*(tensors[name] for name in IMAGE_TENSORS))
    return TextData(Encoded(tensors["ids"], tensors["offsets"], tensors["second"]), tensors["labels"])


def selected_rows(tensors: Tensors, rows: np.ndarray) -> Tensors:
    """Return the tensors of the texts or images at ``rows``, with their labels.

    The token ids of the selected texts are concatenated again.
    """
    labels = {"labels": tensors["labels"][rows]}
    if "pixels" in tensors:
        return tensors | {"pixels": tensors["pixels"][rows]} | labels
    pieces = [tensors["ids"][tensors["offsets"][row] : tensors["offsets"][row + 1]] for row in rows]
    lengths = torch.tensor([len(piece) for piece in pieces])
    return _packed(torch.cat(pieces), lengths, tensors["second"][torch.from_numpy(rows)]).tensors() | labels


def joined_data(parts: Sequence[ClientData]) -> ClientData:
    """Return the examples of all ``parts``, concatenated. Either all parts are images, or all are texts.

    Labels are always copied. Images are copied only if there are several parts.
    """
    labels = torch.cat([part.labels for part in parts])
    first = parts[0]
    if isinstance(first, ImageData):
        pixels = first.pixels
        if len(parts) > 1:  # a copy of all images takes much memory
            pixels = torch.cat([part.pixels for part in parts])
        return replace(first, pixels=pixels, labels=labels)
    ids, lengths, second = (
        torch.cat([getattr(part.texts, name) for part in parts]) for name in ("ids", "lengths", "second")
    )
    return TextData(_packed(ids, lengths, second), labels)


def _packed(ids: Tensor, lengths: Tensor, second: Tensor) -> Encoded:
    """Return texts from concatenated token ids, each text's number of tokens, and the start of its second sentence."""
    return Encoded(ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), second)


class ImageExamples:
    """The images of one client, or of one split of a data set, in a fixed order.

    For training, the images are normalized once and then cached.

    ``labels`` (shape [n]) are on the training device.
    """

    def __init__(self, data: ImageData, rows: Tensor, dtype: torch.dtype) -> None:
        self.data, self.rows, self.dtype, self.labels = data, rows, dtype, data.labels[rows]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def images(self) -> Tensor:
        """Return all normalized images, shape [n, C, H, W]."""
        return normalized(self.data, self.rows, self.dtype)

    def epoch(self, size: int, draws: torch.Generator, drop_last: bool, augment: Augment) -> Iterator[InputBatch]:
        """Yield every example once, in batches of ``size``, in an order sampled from ``draws``.

        ``drop_last``: whether to leave out a last batch that is smaller than ``size``; ``augment``: the augmentation.
        """
        order, crops = sample_epoch(len(self.rows), size, draws, drop_last, augment)
        if not len(order):
            return
        order = order.to(self.rows.device)
        images = augmented_images(self.images[order], crops)
        for positions, x in zip(order.split(size), images.split(size), strict=True):
            yield positions, {"x": x}

    def in_turn(self, size: int) -> Iterator[InputBatch]:
        """Yield every example once, in batches of at most ``size``, in the stored order."""
        for positions in torch.arange(len(self)).split(size):
            yield positions, {"x": normalized(self.data, self.rows[positions], self.dtype)}


class TextExamples:
    """The texts of one client, with the interface of :class:`ImageExamples`. Each batch has texts of similar length."""

    def __init__(self, data: TextData, rows: Tensor) -> None:
        self.texts = data.texts
        self.rows = rows
        self.labels = data.labels[rows.to(data.labels.device)]
        self.lengths = self.texts.lengths[rows]

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, size: int, draws: torch.Generator, drop_last: bool, augment: Augment) -> Iterator[InputBatch]:
        """See :meth:`ImageExamples.epoch`. ``drop_last`` excludes batches smaller than ``size``."""
        if augment != "none":
            raise ValueError(f"augment={augment} requires images")
        for positions in batches(self.lengths, size, draws):
            if len(positions) == size or not drop_last:
                yield positions, self._inputs(positions)

    def in_turn(self, size: int) -> Iterator[InputBatch]:
        """Yield every example once, longest texts first."""
        for positions in batches(self.lengths, size, None):
            yield positions, self._inputs(positions)

    def _inputs(self, positions: Tensor) -> Tensors:
        inputs = self.texts.batch(self.rows[positions])
        return {name: tensor.to(self.labels.device, non_blocking=True) for name, tensor in inputs.items()}


def sample_epoch(
    count: int, size: int, draws: torch.Generator, drop_last: bool, augment: Augment
) -> tuple[Tensor, Tensor | None]:
    """Sample the order and the augmentation of ``count`` images for one epoch.

    The order holds the positions of n images. n is ``count``, or less if ``drop_last`` leaves out a last batch that is
    smaller than ``size``. The augmentation is an int64 tensor of shape [n, 3], with one row per image in this order. A
    row holds the number of pixels by which the image is shifted down and across, and whether the image is flipped. If
    ``augment`` is "none", None is returned instead of this tensor.
    """
    kept = count
    if drop_last:
        kept -= count % size
    order = torch.randperm(count, generator=draws)[:kept]
    if augment == "none":
        return order, None
    shifts = torch.randint(0, 2 * BORDER + 1, (kept, 2), generator=draws)
    flips = torch.randint(0, 2, (kept, 1), generator=draws, dtype=torch.bool)
    return order, torch.cat([shifts, flips], 1)


def normalized(data: ImageData, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the images at ``rows`` as model inputs: normalized, of shape [n, C, H, W], in ``dtype``."""
    pixels = data.pixels[rows]
    mean, std = (value.to(pixels.device, dtype) for value in data.moments)
    return (pixels.to(dtype) - mean) / std


def augmented_images(images: Tensor, crops: Tensor | None) -> Tensor:
    """Return ``images`` (shape [n, C, H, W]) after the augmentation ``crops``; unchanged if ``crops`` is None.

    The images are padded by reflection, then cropped and flipped. ``crops`` has shape [n, 3]; see :func:`sample_epoch`.
    """
    if crops is None:
        return images
    height, width = images.shape[2:]
    wide = F.pad(images, (BORDER,) * 4, mode="reflect")
    down, across, flips = crops.to(images.device)[:, :, None].unbind(1)
    down = down + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    across = across + torch.where(flips.bool(), width - 1 - columns, columns)
    items = torch.arange(len(images), device=images.device)[:, None, None]
    return wide.permute(0, 2, 3, 1)[items, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def batch_count(count: int, size: int, drop_last: bool) -> int:
    """Return the number of batches of ``size`` in an epoch over ``count`` examples.

    ``drop_last``: whether to leave out a last batch that is smaller than ``size``.
    """
    if drop_last:
        return count // size
    return math.ceil(count / size)


@torch.no_grad()
def forward_all(
    model: nn.Module,
    examples: ClientExamples,
    size: int,
    call: Callable[..., Tensor] | None = None,
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the output of ``call`` (default: the model), shape [n, ...], for all examples, in evaluation mode.

    ``size``: the batch size; ``report``: a function that is called after each batch with the number of finished
    batches.
    """
    model.eval()
    places = []
    batches = []
    for positions, inputs in examples.in_turn(size):
        places.append(positions)
        batches.append((call or model)(**inputs))
        if report is not None:
            report(len(batches))
    outputs = torch.cat(batches)
    return outputs[torch.cat(places).argsort().to(outputs.device)]


#: All clients' examples, in memory or on a device.
ClientData = ImageData | TextData
#: The examples of one client.
ClientExamples = ImageExamples | TextExamples
