"""Image views for a student whose teacher sees the originals: gray, edges, half the resolution.

The views are our own choice; Gupta et al. (2016) use pairs of color and depth images.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.distill import View
from knot_runner.data.images.load import unit_pixels
from knot_runner.data.tasks import Images

#: Weights of red, green and blue in gray (ITU-R BT.601, as in Pillow).
GRAY_WEIGHTS = (0.299, 0.587, 0.114)


def viewed_images(images: Images, view: View) -> Images:
    """Return ``images`` transformed by ``view``, float32 in 0..1, with unchanged labels and order."""
    if view == "none":
        return images
    shown = {"gray": gray, "edges": edges, "half": half_size}[view](unit_pixels(images.pixels, np.float32))
    return dataclasses.replace(images, pixels=np.ascontiguousarray(shown, dtype=np.float32))


def task_in_view(task: ImageTaskSettings, train: Images) -> ImageTaskSettings:
    """Return ``task`` adapted to the images ``train``, which are the output of a view.

    The task gets the shape of these images, and the mean and standard deviation of each of their channels.
    """
    channels = train.pixels.astype(np.float64).transpose(1, 0, 2, 3).reshape(train.pixels.shape[1], -1)
    std = [float(value) or 1.0 for value in channels.std(1)]  # avoids division by 0 for a constant channel
    return dataclasses.replace(task, shape=list(train.pixels.shape[1:]), mean=channels.mean(1).tolist(), std=std)


def gray(pixels: np.ndarray) -> np.ndarray:
    """Return gray images of shape [N, 1, H, W] from color images [N, 3, H, W]; gray images are unchanged."""
    if pixels.shape[1] == 1:
        return pixels
    return np.tensordot(pixels, np.array(GRAY_WEIGHTS, dtype=pixels.dtype), axes=(1, 0))[:, None]


def edges(pixels: np.ndarray) -> np.ndarray:
    """Return edge images of shape [N, 1, H, W], values 0 to 1, from images of shape [N, C, H, W].

    The value of a pixel is the magnitude of the gray image's gradient, from the two Sobel kernels, divided by the
    largest possible magnitude 4 sqrt(2). Beyond the border, the nearest pixel is repeated.
    """
    wide = np.pad(gray(pixels)[:, 0], ((0, 0), (1, 1), (1, 1)), mode="edge")
    down = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    across = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]
    horizontal = down[:, :, 2:] - down[:, :, :-2]
    vertical = across[:, 2:] - across[:, :-2]
    return (np.hypot(horizontal, vertical) / np.float32(4 * np.sqrt(2)))[:, None]


def half_size(pixels: np.ndarray) -> np.ndarray:
    """Return the mean of each 2x2 block of pixels, of shape [N, C, H/2, W/2], from images of shape [N, C, H, W]."""
    count, channels, height, width = pixels.shape
    return pixels.reshape(count, channels, height // 2, 2, width // 2, 2).mean((3, 5))
