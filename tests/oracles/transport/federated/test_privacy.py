"""The Gaussian mechanism: its noise against the definition, sensitivities, and what a run spends."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from knot_runner.config.settings.methods.transport import FedwadSettings, PrivacySettings
from knot_runner.config.strict import build
from knot_runner.transport.federated import Client, Measure, distance_between, interpolate, wasserstein
from knot_runner.transport.federated.privacy import clip_to_ball, compose_privacy, delta_of, noise_multiplier
from tests.golden.messages import refuses
from tests.oracles.transport.federated.samples import SEEDS, draws, fedwad, gaussian, toy

PRIVACY = PrivacySettings("gaussian", epsilon=1.0, delta=1e-5, clip=3.0)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(0.5, 0.1), (1.0, 1.0), (3.7, 1.0), (0.3, 8.0)])
def test_delta_is_the_integral_that_defines_it(multiplier, epsilon):
    """delta = integral of max(0, p - e^epsilon q), p and q the densities of outputs on two neighbors."""
    x = np.linspace(-60, 60, 1_200_001)
    p, q = (norm.pdf(x, loc, multiplier) for loc in (1.0, 0.0))
    integral = np.maximum(0, p - math.exp(epsilon) * q).sum() * (x[1] - x[0])
    assert delta_of(multiplier, epsilon) == pytest.approx(integral, rel=1e-4, abs=1e-12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.floats(1e-3, 1e3), st.floats(1e-12, 0.9))
def test_noise_is_the_least_that_is_enough(epsilon, delta):
    multiplier = noise_multiplier(epsilon, delta)
    assert delta_of(multiplier, epsilon) == pytest.approx(delta, rel=1e-3)
    if epsilon < 1 and delta < 0.5:
        assert multiplier < math.sqrt(2 * math.log(1.25 / delta)) / epsilon, "the classical mechanism's"


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SEEDS, st.floats(0.05, 0.95), st.integers(1, 6))
def test_sensitivities_hold(seed, t, support):
    """Points: any two data sets in the ball. Distance: two that differ in one sample."""
    points = clip_to_ball(gaussian(9, 2, seed, "mu").points * 5, PRIVACY.clip)
    other = clip_to_ball(gaussian(9, 2, seed, "other").points * 5, PRIVACY.clip)
    xi = gaussian(support, 2, seed, "xi")
    sent = [interpolate(xi, Measure(side), t, "approximate")[0].points for side in (points, other)]
    assert np.linalg.norm(sent[0] - sent[1]) <= 2 * PRIVACY.clip * t * math.sqrt(support) + 1e-9
    neighbor = np.vstack([other[:1], points[1:]])
    change = wasserstein(Measure(points), xi) - wasserstein(Measure(neighbor), xi)
    assert abs(change) <= 2 * PRIVACY.clip / 3 + 1e-9


@pytest.mark.parametrize("radius", [0.5, 1.0, 3.0])
def test_clipped_points_lie_on_the_ball(radius):
    points = gaussian(50, 3, "mu").points
    norms = np.linalg.norm(points, axis=1)
    actual = clip_to_ball(points, radius)
    outside = norms > radius
    assert outside.any() or radius == 3.0
    np.testing.assert_allclose(np.linalg.norm(actual[outside], axis=1), radius, rtol=1e-14)
    np.testing.assert_allclose(actual[outside] / radius, points[outside] / norms[outside, None], rtol=1e-12)
    np.testing.assert_array_equal(actual[~outside], points[~outside])
    heavy = Client(Measure(points, np.arange(1, 51)), private(clip=radius), "mu", draws())._samples
    np.testing.assert_array_equal(heavy.points, actual)
    assert heavy.weights.tolist() == list(range(1, 51))


def private(clip=3.0, t=0.2):
    return fedwad(mode="approximate", t=t, privacy=PrivacySettings("gaussian", epsilon=2.0, delta=1e-4, clip=clip))


def noise_of(options, iteration, name="mu", support=4):
    """What is sent less what would be without noise, of the same clipped samples."""
    samples, xi = Measure(clip_to_ball(gaussian(9, 2, "mu").points, 3.0)), gaussian(support, 2, "xi")
    sent = Client(samples, options, name, draws()).interpolated(xi, iteration, False).measure.points
    return sent - interpolate(xi, samples, options.t, "approximate")[0].points


def test_noise_differs_between_iterations_and_clients():
    drawn = [noise_of(private(), k, name) for k in (1, 2, 3) for name in ("mu", "nu")]
    for i, one in enumerate(drawn):
        assert (np.abs(one) > 0).all()
        assert all((one != other).all() for other in drawn[:i])
        assert len({round(float(value), 12) for value in one.ravel()}) == one.size, "and for each coordinate"


def test_point_noise_scales_with_clip_t_and_support():
    """The same draw at other settings: its size is sigma(epsilon, delta) 2 clip t sqrt(S), to the last digits."""
    drawn = noise_of(private(), 1)
    standard = drawn / (noise_multiplier(2.0, 1e-4) * 2 * 3.0 * 0.2 * math.sqrt(4))
    np.testing.assert_allclose(standard, draws()("mu", "measure", 1).standard_normal((4, 2)), rtol=1e-9)
    np.testing.assert_allclose(noise_of(private(t=0.8), 1), 4 * drawn, rtol=1e-9)
    np.testing.assert_allclose(noise_of(private(clip=30.0), 1), 10 * drawn, rtol=1e-9)
    nine = noise_of(private(), 1, support=9) / (noise_multiplier(2.0, 1e-4) * 2 * 3.0 * 0.2 * 3)
    np.testing.assert_allclose(nine, draws()("mu", "measure", 1).standard_normal((9, 2)), rtol=1e-9)


@pytest.mark.parametrize("weights", [None, np.array([5, 1, 1, 1])])
def test_distances_carry_noise_for_the_heaviest_sample(weights):
    far = Measure(np.array([[3.0, 0.0], [0.0, 3.0], [-3.0, 0.0], [0.0, -3.0]]), weights)
    options, xi = private(), Measure(np.array([[400.0, 0.0]]))  # far enough that no release is cut at 0
    client = Client(far, options, "mu", draws())
    sigma = noise_multiplier(2.0, 1e-4) * 2 * 3.0 * math.sqrt(0.25 if weights is None else 5 / 8)
    drawn = float(draws()("mu", "last").standard_normal())
    assert client.distance(xi).distance == pytest.approx(wasserstein(far, xi) + sigma * drawn, rel=1e-12)
    traced = client.interpolated(xi, 2, True)
    for sent, at, name in ((traced.distance, xi, "distance"), (traced.remainder, traced.measure, "remainder")):
        drawn = float(draws()("mu", name, 2).standard_normal())
        assert sent == pytest.approx(wasserstein(far, at) + sigma * drawn, rel=1e-12)
    mu = gaussian(4, 2, "mu")
    sent = [Client(mu, private(), "mu", draws(seed)).distance(mu).distance for seed in range(20)]
    assert min(sent) == 0 < max(sent), "a distance is never released below 0"


def test_private_distance_reports_spending_and_refuses_exact_mode():
    mu, nu = toy(20, 20, 0)
    plain, private, traced = (
        distance_between(mu, nu, fedwad(mode="approximate", privacy=privacy), draws(), trace)
        for privacy, trace in ((None, False), (PRIVACY, False), (PRIVACY, True))
    )
    assert plain.spent is None and private.value != plain.value
    assert private.spent == compose_privacy(PRIVACY, 5) == pytest.approx((5.0, 5e-5))
    assert traced.spent == pytest.approx((13.0, 13e-5)), "4 measures, 2 x 4 distances, and the last"
    weak = PrivacySettings("gaussian", epsilon=1e9, delta=0.5, clip=100.0)
    near = distance_between(mu, nu, fedwad(mode="approximate", privacy=weak), draws())
    assert near.value == pytest.approx(plain.value, rel=1e-2), "next to no noise, next to no change"
    exact = {"mode": "exact", "support": 5, "iterations": 4, "t": 0.5, "start_scale": 1.0, "privacy": PRIVACY}
    with refuses():
        build(FedwadSettings, exact, "fedwad")
