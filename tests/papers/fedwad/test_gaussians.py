"""Samples of two Gaussians: the same everywhere, of the right distribution."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.strict import build
from knot_runner.papers.fedwad.distance import draw_gaussians
from knot_runner.papers.fedwad.settings import GaussiansSettings
from tests.golden.messages import refuses

TOY = GaussiansSettings("gaussians", "gaussians", "generated", 200, 1, 2, 0.2, 4 * 2**0.5)


def drawn(seed: int = 0, **changes):
    return draw_gaussians(dataclasses.replace(TOY, **changes), seed)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**40))
def test_draw_gaussians_has_its_sizes_and_repeats(samples: int, ratio: int, dimension: int, seed: int) -> None:
    if samples < ratio:
        return
    one, two = (drawn(seed, samples=samples, ratio=ratio, dimension=dimension) for _ in range(2))
    assert one.first.shape == (samples, dimension) and one.second.shape == (samples // ratio, dimension)
    assert one.first.dtype == one.second.dtype == np.float64
    assert one.digest == two.digest and (one.first == two.first).all()
    assert drawn(seed + 1, samples=samples, ratio=ratio, dimension=dimension).digest != one.digest


@pytest.mark.parametrize("dimension", [1, 2, 50])
def test_draw_gaussians_offsets_the_means(dimension: int) -> None:
    task = drawn(covariance=1e-20, offset=4.0, dimension=dimension)
    apart = task.second.mean(0) - task.first.mean(0)
    assert np.linalg.norm(apart) == pytest.approx(4) and task.distance == 4.0
    assert apart == pytest.approx(np.full(dimension, 4 / dimension**0.5))


def test_draw_gaussians_has_the_covariance() -> None:
    task = drawn(samples=40_000, covariance=0.3)
    for sample in (task.first, task.second):
        assert np.cov(sample.T) == pytest.approx(0.3 * np.eye(2), abs=0.01)  # standard error .002
    between = np.corrcoef(task.first.T, task.second.T)[:2, 2:]
    assert np.abs(between).max() < 0.025  # standard error .005


def test_draw_gaussians_draws_the_first_sample_alone() -> None:
    assert (drawn(ratio=3, offset=1.0).first == drawn().first).all()
    assert (drawn(ratio=3).second == drawn().second[:66]).all()


@pytest.mark.parametrize(("key", "value"), [("samples", 0), ("ratio", 300), ("covariance", 0.0)])
def test_gaussians_settings_refuse(key: str, value: float) -> None:
    with refuses():
        build(GaussiansSettings, dataclasses.asdict(TOY) | {key: value}, "task")
