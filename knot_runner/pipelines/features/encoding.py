"""Conversion of images to points, to measure distances between data. For texts, see ``texts.py``.

The points are normalized pixels, or the codes of an autoencoder. This module also reads the examples and partitions
them over clients.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.methods.transport import EncoderSettings, TextFeatures
from knot_runner.config.settings.partition import Natural
from knot_runner.config.strict import digest
from knot_runner.data.images import Images, ImageTask, Partition, make_partition
from knot_runner.data.images.load import unit_pixels
from knot_runner.data.pools import TextPool
from knot_runner.engine.commit import join_machines
from knot_runner.engine.hardware import machine
from knot_runner.engine.seeds import generator, seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.encoder import Autoencoder, build_encoder
from knot_runner.pipelines.context import RunContext, elapsed
from knot_runner.pipelines.features.texts import TextSpace, read_pool, text_space
from knot_runner.pipelines.federations.texts import model_files
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts


class Described(Protocol):
    """Settings that determine how examples are converted to points (feature vectors).

    Attributes:
        encoder: Settings of the autoencoder for images. With None, pixels are used.
        features: Settings of the features of texts.
    """

    encoder: EncoderSettings | None
    features: TextFeatures | None


#: Partition of text tasks without a partition setting: each data set is a client.
DATA_SETS = Natural("natural", by="user", least=1, num_clients=None, alpha=1.0, embedded_clients=1)


def read_examples(context: RunContext, described: Described) -> ImageTask | TextPool:
    """Return the task's images, or a pool of the task's labeled texts.

    Raises:
        UserError: The examples cannot be read.
    """
    if context.settings.on_images:
        return context.images()
    spec = described.features
    pool = read_pool(context, spec)
    if spec is None or spec.kind != "cls":
        return pool
    return replace(pool, files=[*pool.files, *model_files(context)])


def client_partition(context: RunContext, task: ImageTask | TextPool) -> Partition:
    """Return the run's partition of ``task``. Without a partition setting, each data set of a text task is one client.

    Raises:
        UserError: The partition is not possible.
    """
    settings = context.settings
    return make_partition(settings.partition or DATA_SETS, task, settings.seed)


ENCODER_STAGE = "encoder"
#: Number of images that are encoded at once.
IMAGES_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Space:
    """The feature space of a task's images. A point is a vector of shape [d].

    Attributes:
        shape: The number of channels, the height and the width of an image.
        mean, std: The mean and standard deviation of each channel, [C, 1, 1], for pixel values from 0 to 1.
        model: The autoencoder whose codes are the points. With None, the points are flattened normalized pixels.
    """

    shape: tuple[int, int, int]
    mean: np.ndarray
    std: np.ndarray
    model: Autoencoder | None = None

    def points(self, images: Images) -> np.ndarray:
        """Return the points of ``images``, float64 [N, d]."""
        if self.model is None:
            return self.normalized(images, np.float64).reshape(len(images), -1)
        codes = np.empty((len(images), self.model.code))
        for first in range(0, len(images), IMAGES_AT_ONCE):
            rows = np.arange(len(images))[first : first + IMAGES_AT_ONCE]
            pixels = torch.from_numpy(self.normalized(images.take(rows), np.float32))
            with torch.no_grad():
                codes[rows] = self.model.encoder(pixels).numpy()
        return codes

    def images(self, points: np.ndarray) -> np.ndarray:
        """Convert ``points`` [K, d] to images; return float32 [K, C, H, W], with pixels clipped to 0..1."""
        if self.model is None:
            pixels = points.reshape(-1, *self.shape)
        else:
            with torch.no_grad():
                pixels = self.model.decoder(torch.from_numpy(points.astype(np.float32))).numpy()
        return np.clip(pixels * self.std + self.mean, 0, 1).astype(np.float32)

    def normalized(self, images: Images, dtype: type) -> np.ndarray:
        """Return (pixels - mean) / std per channel, [N, C, H, W]."""
        return (unit_pixels(images.pixels, dtype) - self.mean.astype(dtype)) / self.std.astype(dtype)


def feature_space(
    context: RunContext, described: Described, task: ImageTask | TextPool, train_rows: np.ndarray | None = None
) -> Space | TextSpace:
    """Return the feature space of a task.

    For images, see :func:`space`. For texts, ``described.features`` defines the space.
    """
    if isinstance(task, TextPool):
        return text_space(context, described.features, task)
    return space(context, described.encoder, task, train_rows)


def space(
    context: RunContext, spec: EncoderSettings | None, task: ImageTask, train_rows: np.ndarray | None = None
) -> Space:
    """Return the feature space of images: normalized pixels if ``spec`` is None, otherwise codes of an autoencoder.

    The autoencoder is trained with Adam on the mean squared error of normalized pixels. With ``spec.epochs=0``, it
    keeps its initial weights. A trained autoencoder is stored for later runs.

    Args:
        context: The run.
        spec: Settings of the autoencoder.
        task: The images.
        train_rows: Row numbers of the images on which the autoencoder is trained. With None, all training images are
            used.

    Raises:
        UserError: All images are equal, or training diverges.
    """
    if len(task.train) > 1 and (task.train.pixels == task.train.pixels[:1]).all():
        raise UserError(f"all {len(task.train)} training images are identical, so distances are undefined", task.name)
    mean, std = np.array([task.mean, task.std], np.float64)[..., None, None]
    plain = Space(task.shape, mean, std)
    if spec is None:
        return plain
    settings = context.settings
    with seeded(settings.seed, ENCODER_STAGE, "weights"):
        model = build_encoder(spec, task.shape)
    if spec.epochs:
        images = task.train if train_rows is None else task.train.take(train_rows)
        about = {"spec": spec, "data": images.digest, "mean": task.mean, "std": task.std, "seed": settings.seed}
        key = digest({**about, "threads": settings.hardware.threads})

        def train() -> tuple[Tensors, Facts]:
            began = time.monotonic()
            losses = _train(context, spec, model, torch.from_numpy(plain.normalized(images, np.float32)))
            info = {"images": len(images), "losses": losses, "seconds": elapsed(began), "machines": [machine()]}
            return model.state_dict(), info

        artifact = context.store.find_or_put(ENCODER_STAGE, key, train)
        join_machines([artifact.info], context.note)
        model.load_state_dict(artifact.tensors())
    return replace(plain, model=model.eval())


def _train(context: RunContext, spec: EncoderSettings, model: Autoencoder, pixels: Tensor) -> list[float]:
    """Train ``model`` in place on ``pixels`` [N, C, H, W]; return each epoch's mean loss.

    The batch order is seeded by the run's seed.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.lr)
    losses = []
    for epoch in range(spec.epochs):
        order = torch.randperm(len(pixels), generator=generator(context.settings.seed, ENCODER_STAGE, "order", epoch))
        total = 0.0
        for rows in order.split(spec.batch_size):
            batch = pixels[rows]
            loss = F.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        losses.append(total / len(pixels))
        if not math.isfinite(losses[-1]):
            raise UserError(f"training with {spec.lr} diverged in epoch {epoch}. Use a smaller rate", "encoder.lr")
        context.progress("encoder", epoch + 1, spec.epochs, f"error {losses[-1]:.4f}")
    return losses
