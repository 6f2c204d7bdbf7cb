"""Two samples of Gaussians whose Wasserstein distance is known (FedWaD 4 and D.1, Fig. 2, 3, 8, 9)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from knot_runner.config.settings import GaussiansSettings


@dataclass(frozen=True, eq=False)
class Gaussians:
    """``first`` [n, d] of N(0, c I) and ``second`` [m, d] of N(mean, c I), float64; independent of each other.

    As both have one covariance, their 2-Wasserstein distance is that of their means, ``distance``.
    """

    first: np.ndarray
    second: np.ndarray
    distance: float

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of both samples: equal data, equal digest."""
        state = hashlib.sha256()
        for sample in (self.first, self.second):
            state.update(f"{sample.shape}".encode() + np.ascontiguousarray(sample).tobytes())
        return state.hexdigest()


def draw_gaussians(settings: GaussiansSettings, seed: int) -> Gaussians:
    """Both samples, each from a random stream of its own: ``settings.samples`` points of the first and a ``ratio``-th
    of that, rounded down, of the second, whose mean lies at distance ``offset`` along (1, ..., 1)."""
    n, d, spread = settings.samples, settings.dimension, settings.covariance**0.5
    first = spread * _random(seed, "first").standard_normal((n, d))
    second = settings.offset / d**0.5 + spread * _random(seed, "second").standard_normal((n // settings.ratio, d))
    return Gaussians(first, second, settings.offset)


def _random(seed: int, sample: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/gaussians/{sample}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
