"""Images that show what a model says when there is nothing to see: its probability bias (KNOT section 5.2)."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings import BiasSettings
from knot_runner.data.tasks import UNLABELLED, Images
from knot_runner.engine.seeds import keyed


def random_images(public: Images, bias: BiasSettings, seed: int) -> Images:
    """``bias.images`` images without labels, of the shape of the transfer set's ``public`` ones: uniform noise, or
    these with their pixels in random places (all channels alike)."""
    draw, count = np.random.default_rng(keyed(seed, "random images", bias.noise)), bias.images
    shape, labels = public.pixels.shape[1:], np.full(bias.images, UNLABELLED, dtype=np.int64)
    if bias.noise == "uniform":
        whole = public.pixels.dtype == np.uint8
        pixels = draw.integers(256, size=(count, *shape), dtype=np.uint8) if whole else draw.random((count, *shape))
        return Images(pixels.astype(public.pixels.dtype, copy=False), labels)
    chosen = public.pixels[draw.integers(len(public), size=count)].reshape(count, shape[0], -1)
    places = draw.permuted(np.tile(np.arange(chosen.shape[2]), (count, 1)), axis=1)
    return Images(np.take_along_axis(chosen, places[:, None, :], axis=2).reshape(count, *shape), labels)
