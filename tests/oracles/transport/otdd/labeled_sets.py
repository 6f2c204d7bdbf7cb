"""Small sets of labeled samples, and settings for them."""

from dataclasses import replace

import numpy as np
import pytest

from knot_runner.config.settings.methods.transport import FedwadSettings, OtddSettings
from knot_runner.transport.otdd import LabeledSamples


@pytest.fixture
def options():
    return OtddSettings(
        "federated", "sqrt_frobenius", "root_diagonal", 1000, "float64", FedwadSettings("approximate", 5, 4, 0.5, 1.0)
    )


@pytest.fixture
def with_fedwad(options):
    """Settings whose ``fedwad`` has other values."""
    return lambda **changes: replace(options, fedwad=replace(options.fedwad, **changes))


@pytest.fixture
def sets():
    """(how many, features) -> sets of 20 and more samples of one to three classes, no two alike."""

    def make(count, features=6, seed=0):
        draws, made = np.random.default_rng(seed), []
        for one in range(count):
            labels = draws.integers(0, one % 3 + 1, 20 + 7 * one) * 2 + 5
            points = draws.normal(size=(len(labels), features)) * draws.uniform(0.3, 1.5, features)
            made.append(LabeledSamples(points + 0.3 * labels[:, None], labels))
        return made

    return make
