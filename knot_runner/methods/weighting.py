"""Functions that compute the teachers' weights W_k (KNOT section 5), in the table WEIGHTINGS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.data.tasks import Images
from knot_runner.engine.seeds import numpy_generator

#: Function ``(q, shares, biases) -> weights`` [N, K] for N examples, K teachers and C classes. ``q`` [N, K, C]: the
#: teachers' output probabilities; ``shares`` [K]: each teacher's fraction of the data; ``biases`` [K, C] or None:
#: probability biases.
Weighting = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def equal_weights(q: Tensor, shares: Tensor, biases: Tensor | None) -> Tensor:
    """Return the weights of weighting A: 1 for every teacher (KNOT section 5.1)."""
    return torch.ones(q.shape[:2])


def data_share(q: Tensor, shares: Tensor, biases: Tensor | None) -> Tensor:
    """Return the weights of weighting D: each teacher's fraction of all training data."""
    return shares.expand(q.shape[:2]).clone()


def from_uniform(q: Tensor, shares: Tensor, biases: Tensor | None) -> Tensor:
    """Return the weights of weighting U: the L2 distance between each teacher's output and the uniform distribution."""
    distance: Tensor = (q - 1 / q.shape[2]).norm(dim=2)
    return distance


def from_bias(q: Tensor, shares: Tensor, biases: Tensor | None) -> Tensor:
    """Return the weights of weighting E: the L2 confidence of each teacher (KNOT definition 5.1).

    The confidence is the L2 distance between the teacher's output and the teacher's probability bias B_k.
    """
    assert biases is not None, "plan() asks for the biases whenever needs_bias() says so"
    distance: Tensor = (q - biases).norm(dim=2)
    return distance


def _problem(weights: object, q: Tensor, shares: Tensor, biases: Tensor | None) -> str:
    """Return why ``weights`` are not valid weights [N, K] for ``q`` [N, K, C]; "" if they are valid."""
    if not isinstance(weights, Tensor):
        return unlike(weights, Tensor, "a tensor")
    if weights.shape != q.shape[:2]:
        return f"weights of shape {list(weights.shape)} instead of {list(q.shape[:2])} (examples, teachers)"
    if (weights >= 0).all() and weights.isfinite().all():
        return ""
    return "a weight that is negative or not finite"


WEIGHTINGS: Table[Weighting] = Table(
    "WEIGHTINGS",
    {"A": equal_weights, "D": data_share, "U": from_uniform, "E": from_bias},
    lambda where, function: checked(where, function, _problem),
)


def equal_where_zero(weights: Tensor) -> Tensor:
    """Return ``weights`` [N, K] with every row of zeros replaced by a row of ones.

    Each row of the result can therefore be divided by its sum.
    """
    # If all weights are 0, each output equals the reference (uniform or bias), so all teachers count equally.
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, 1.0)


def probability_bias(logits: Tensor) -> list[float]:
    """Return a teacher's probability bias B_k: how often the teacher predicts each label for random examples.

    ``logits`` [N, C]: the teacher's outputs for these examples. The result holds the frequency of each label, after 1
    has been added to the count of every label (KNOT App. D.1).
    """
    counts = torch.bincount(logits.argmax(1), minlength=logits.shape[1]).double() + 1
    return (counts / counts.sum()).tolist()


def needs_bias(weighting: str) -> bool:
    """Return whether ``weighting`` needs the teachers' probability biases: True for E and all plug-in weightings."""
    return weighting not in ("A", "D", "U")


def random_images(public: Images, bias: BiasSettings, seed: int) -> Images:
    """Return random images without labels, with the shape of the images in ``public``.

    ``bias.images`` is the number of random images. With ``bias.noise=uniform``, each image is uniform noise. Otherwise,
    each image is drawn from ``public``, and its pixels are permuted. The permutation is the same in all channels.
    """
    draw = numpy_generator(seed, "random images", bias.noise)
    count = bias.images
    shape = (count, *public.pixels.shape[1:])
    if bias.noise == "uniform" and public.pixels.dtype == np.uint8:
        pixels = draw.integers(256, size=shape, dtype=np.uint8)
    elif bias.noise == "uniform":
        pixels = draw.random(shape).astype(public.pixels.dtype, copy=False)
    else:
        chosen = public.pixels[draw.integers(len(public), size=count)].reshape(*shape[:2], -1)
        places = draw.permuted(np.tile(np.arange(chosen.shape[2]), (count, 1)), axis=1)
        pixels = np.take_along_axis(chosen, places[:, None, :], axis=2).reshape(shape)
    return Images(pixels, np.full(count, UNLABELED, dtype=np.int64))
