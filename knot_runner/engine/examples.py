"""Labeled examples (images or texts) as tensors, and batches of network inputs."""

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
    """The images and labels of all clients.

    Attributes:
        pixels: The N images, shape [N, C, H, W], as floating-point values or as uint8 values. The uint8 value 255
            stands for 1.0.
        labels: The labels of the images, int64, shape [N].
        mean: The mean of each channel, shape [C]. Models receive ``(pixels - mean) / std``.
        std: The standard deviation of each channel, shape [C].
    """

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def to(self, device: torch.device) -> ImageData:
        """Return the data with all tensors on ``device``."""
        return ImageData(*(tensor.to(device) for tensor in self.tensors().values()))

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Return ``mean`` and ``std``, each of shape [C, 1, 1]. For uint8 pixels, both are multiplied by 255."""
        unit = 1.0
        if self.pixels.dtype == torch.uint8:
            unit = 255.0
        return (self.mean * unit)[:, None, None], (self.std * unit)[:, None, None]

    def select(self, rows: Tensor, dtype: torch.dtype) -> ImageExamples:
        """Return the images with the row numbers ``rows``. ``dtype``: the dtype of the images that models receive."""
        return ImageExamples(self, rows.to(self.labels.device), dtype)

    def tensors(self) -> Tensors:
        """Return all tensors of the data by name. :func:`stored_data` is the inverse."""
        return {name: getattr(self, name) for name in IMAGE_TENSORS}


@dataclass(frozen=True)
class TextData:
    """The texts and labels of all clients.

    Attributes:
        texts: The token ids of the texts, on the CPU. Each batch of token ids is moved to the training device.
        labels: The labels of the texts, int64, shape [N], on the training device.
    """

    texts: Encoded
    labels: Tensor

    def to(self, device: torch.device) -> TextData:
        """Return the data with the labels on ``device``. The token ids stay on the CPU."""
        return TextData(self.texts, self.labels.to(device))

    def select(self, rows: Tensor, dtype: torch.dtype) -> TextExamples:
        """Return the texts with the row numbers ``rows``. The argument ``dtype`` is ignored."""
        return TextExamples(self, rows.cpu())

    def tensors(self) -> Tensors:
        """Return all tensors of the data by name. :func:`stored_data` is the inverse."""
        return self.texts.tensors() | {"labels": self.labels}


def stored_data(tensors: Tensors) -> ClientData:
    """Return the data set that consists of ``tensors``.

    If ``tensors`` has the key "pixels", the result is an :class:`ImageData`, otherwise a :class:`TextData`.
    """
    if "pixels" in tensors:
        return ImageData(*(tensors[name] for name in IMAGE_TENSORS))
    return TextData(Encoded(tensors["ids"], tensors["offsets"], tensors["second"]), tensors["labels"])


def selected_rows(tensors: Tensors, rows: np.ndarray) -> Tensors:
    """Select the examples with the row numbers ``rows``; return the tensors of the selected examples.

    ``tensors``: the tensors of the full data set, from :meth:`ImageData.tensors` or :meth:`TextData.tensors`.
    """
    labels = {"labels": tensors["labels"][rows]}
    if "pixels" in tensors:
        return tensors | {"pixels": tensors["pixels"][rows]} | labels
    pieces = [tensors["ids"][tensors["offsets"][row] : tensors["offsets"][row + 1]] for row in rows]
    lengths = torch.tensor([len(piece) for piece in pieces])
    return _packed(torch.cat(pieces), lengths, tensors["second"][torch.from_numpy(rows)]).tensors() | labels


def joined_data(parts: Sequence[ClientData]) -> ClientData:
    """Return one data set with the examples of all ``parts``, in order. All parts must have the same type.

    If there is only one part, its images are not copied.
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
    """The n images of one client, or of one split of a data set, in a fixed order.

    The attribute ``labels`` holds the labels of the images, shape [n], on the training device.
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
        """Yield the batches of one epoch over the examples in random order.

        A batch is a pair: the positions of its examples among all n examples, and the inputs of the network.

        Args:
            size: The batch size.
            draws: The random generator for the order and the augmentation.
            drop_last: Whether to leave out the last batch if it is smaller than ``size``.
            augment: The augmentation.
        """
        order, crops = sample_epoch(len(self.rows), size, draws, drop_last, augment)
        if not len(order):
            return
        order = order.to(self.rows.device)
        images = augmented_images(self.images[order], crops)
        for positions, x in zip(order.split(size), images.split(size), strict=True):
            yield positions, {"x": x}

    def in_turn(self, size: int) -> Iterator[InputBatch]:
        """Yield all examples once, in their fixed order, in batches of at most ``size`` examples."""
        for positions in torch.arange(len(self)).split(size):
            yield positions, {"x": normalized(self.data, self.rows[positions], self.dtype)}


class TextExamples:
    """The texts of one client. Methods are as in :class:`ImageExamples`, but a batch has texts of similar length."""

    def __init__(self, data: TextData, rows: Tensor) -> None:
        self.texts = data.texts
        self.rows = rows
        self.labels = data.labels[rows.to(data.labels.device)]
        self.lengths = self.texts.lengths[rows]

    def __len__(self) -> int:
        return len(self.rows)

    def epoch(self, size: int, draws: torch.Generator, drop_last: bool, augment: Augment) -> Iterator[InputBatch]:
        """Yield the batches of one epoch in random order. A batch has at most ``size`` texts of similar length.

        ``drop_last``: whether to leave out batches with fewer than ``size`` texts.

        Raises:
            ValueError: ``augment`` is not "none".
        """
        if augment != "none":
            raise ValueError(f"augment={augment} requires images")
        for positions in batches(self.lengths, size, draws):
            if len(positions) == size or not drop_last:
                yield positions, self._inputs(positions)

    def in_turn(self, size: int) -> Iterator[InputBatch]:
        """Yield every text once, in batches of at most ``size`` texts, longest texts first."""
        for positions in batches(self.lengths, size, None):
            yield positions, self._inputs(positions)

    def _inputs(self, positions: Tensor) -> Tensors:
        inputs = self.texts.batch(self.rows[positions])
        return {name: tensor.to(self.labels.device, non_blocking=True) for name, tensor in inputs.items()}


def sample_epoch(
    count: int, size: int, draws: torch.Generator, drop_last: bool, augment: Augment
) -> tuple[Tensor, Tensor | None]:
    """Sample the order and the augmentation of ``count`` images for one epoch.

    Args:
        count: The number of images.
        size: The batch size.
        draws: The random generator.
        drop_last: Whether to leave out the last batch if it is smaller than ``size``.
        augment: The augmentation.

    Returns:
        The pair (order, augmentation). Let n be the number of images that are not left out. Entry i of the order, shape
        [n], is the index (from 0 to ``count - 1``) of the i-th image of the epoch. Row i of the augmentation, shape
        [n, 3], belongs to entry i of the order. The columns are (1) the vertical offset of the crop in the padded
        image, (2) its horizontal offset, and (3) whether the crop is flipped (1 or 0). If ``augment`` is "none", the
        augmentation is None.
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
    """Return the normalized images with the row numbers ``rows``, shape [n, C, H, W], in ``dtype``."""
    pixels = data.pixels[rows]
    mean, std = (value.to(pixels.device, dtype) for value in data.moments)
    return (pixels.to(dtype) - mean) / std


def augmented_images(images: Tensor, crops: Tensor | None) -> Tensor:
    """Apply the augmentation ``crops`` to ``images``, shape [n, C, H, W], and return the result.

    Each image is padded by reflection, then cropped and flipped. ``crops`` comes from :func:`sample_epoch`. If
    ``crops`` is None, the images are returned unchanged.
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
    """Return the number of batches in one epoch over ``count`` examples.

    ``size``: the batch size. ``drop_last``: whether to leave out the last batch if it is smaller than ``size``.
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
    """Run the model in evaluation mode on n examples; return the outputs in the order of the examples, shape [n, ...].

    Args:
        model: The model.
        examples: The examples.
        size: The batch size.
        call: Function to call on each batch instead of ``model``, such as a function that returns features.
        report: Function that receives the number of finished batches after each batch.
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
