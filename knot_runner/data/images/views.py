"""Views of images: gray images, edge images, or images of half the resolution.

A student learns from a view while its teacher sees the original images. These views are our own choice. Gupta et al.
(2016) use pairs of color and depth images.
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
    """Return ``images`` transformed by ``view``.

    Except for the view "none", the pixels become float32 from 0 to 1. Labels and order do not change.
    """
    if view == "none":
        return images
    shown = {"gray": gray, "edges": edges, "half": half_size}[view](unit_pixels(images.pixels, np.float32))
    return dataclasses.replace(images, pixels=np.ascontiguousarray(shown, dtype=np.float32))


def task_in_view(task: ImageTaskSettings, train: Images) -> ImageTaskSettings:
    """Return ``task`` with the shape, channel means and channel standard deviations of ``train``.

    ``train``: all training images, transformed by a view.
    """
    channels = train.pixels.astype(np.float64).transpose(1, 0, 2, 3).reshape(train.pixels.shape[1], -1)
    std = [float(value) or 1.0 for value in channels.std(1)]  # avoids division by 0 for a constant channel
    return dataclasses.replace(task, shape=list(train.pixels.shape[1:]), mean=channels.mean(1).tolist(), std=std)


def gray(pixels: np.ndarray) -> np.ndarray:
    """Convert color images [N, 3, H, W] to gray images [N, 1, H, W]. Images with one channel are returned unchanged."""
    if pixels.shape[1] == 1:
        return pixels
    return np.tensordot(pixels, np.array(GRAY_WEIGHTS, dtype=pixels.dtype), axes=(1, 0))[:, None]


def edges(pixels: np.ndarray) -> np.ndarray:
    """Return the edges of images of shape [N, C, H, W], as images of shape [N, 1, H, W] with values from 0 to 1.

    The value of a pixel is the magnitude of the Sobel gradient of the gray image, divided by the largest possible
    magnitude, ``4 * sqrt(2)``. Beyond the border, the nearest pixel is repeated.
    """
    wide = np.pad(gray(pixels)[:, 0], ((0, 0), (1, 1), (1, 1)), mode="edge")
    down = wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]
    across = wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]
    horizontal = down[:, :, 2:] - down[:, :, :-2]
    vertical = across[:, 2:] - across[:, :-2]
    return (np.hypot(horizontal, vertical) / np.float32(4 * np.sqrt(2)))[:, None]


def half_size(pixels: np.ndarray) -> np.ndarray:
    """Return images of half the height and width. Each pixel is the mean of a 2x2 block of pixels.

    The shape changes from [N, C, H, W] to [N, C, H/2, W/2].
    """
    count, channels, height, width = pixels.shape
    return pixels.reshape(count, channels, height // 2, 2, width // 2, 2).mean((3, 5))
