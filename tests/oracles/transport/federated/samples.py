"""Samples, settings and draws that the tests of the federated distance share."""

import zlib
from functools import partial
from typing import Any

import numpy as np
import ot
from hypothesis import strategies as st

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.transport.federated import Draws, Measure

SIZES = st.integers(1, 7)
SEEDS = st.integers(0, 10_000)


def keyed(seed: int, *names: object) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(repr(names).encode())])


def draws(seed: int = 0) -> Draws:
    return partial(keyed, seed)


def fedwad(**changes: Any) -> FedwadSettings:
    return FedwadSettings(**{"mode": "exact", "support": 5, "iterations": 4, "t": 0.5, "start_scale": 1.0} | changes)


def gaussian(n: int, d: int, *names: object, offset: float = 0.0, covariance: float = 1.0) -> Measure:
    return Measure(covariance**0.5 * keyed(1, *names).normal(size=(n, d)) + offset)


def toy(n: int, m: int, seed: int) -> tuple[Measure, Measure]:
    """The toy of the paper (Fig. 3) with means (0, 0) and (4, 4), covariance .2 I."""
    mu = gaussian(n, 2, seed, "mu", covariance=0.2)
    return mu, gaussian(m, 2, seed, "nu", offset=4.0, covariance=0.2)


def emd(first: Measure, second: Measure) -> float:
    """W_2 by POT, at a cap that problems of this size do not reach."""
    cost = ot.dist(first.points, second.points)
    return ot.emd2(first.masses(), second.masses(), cost, numItermax=10**7) ** 0.5
