"""Compiled passes against the plain loop in float64, over shapes that the parity cases do not have."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.lean.stems import Gram
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.objectives import CrossEntropy, Objective, cross_entropy
from knot_runner.engines.native.engine import make_native_client
from knot_runner.engines.native.stem import PooledConvs
from knot_runner.models.network import Network
from tests.unit.engine.federated.test_lean_layers import assert_gradients_of_autograd
from tests.unit.engines.native_cases import needs_compiler

pytestmark = [pytest.mark.machine, needs_compiler]


@settings(max_examples=30, deadline=None)
@given(
    side=st.tuples(st.integers(16, 40), st.integers(16, 19)),
    kernels=st.tuples(st.integers(1, 7), st.integers(1, 3)),
    paddings=st.tuples(st.integers(0, 3), st.integers(0, 1)),
    channels=st.tuples(st.integers(1, 17), st.integers(1, 30), st.integers(1, 15)),
    count=st.integers(1, 9),
)
def test_pooled_convs_matches_autograd_at_any_shape(side, kernels, paddings, channels, count):
    assert_gradients_of_autograd(PooledConvs, side, kernels, paddings, channels, count)


def test_large_images_are_done_band_by_band():
    """An image of 64 x 64 with 16 channels is 12 times the band that is done at once."""
    assert_gradients_of_autograd(PooledConvs, (64, 65), (5, 3), (2, 1), (16, 5, 3), 2)


def test_pooled_convs_matches_autograd_on_small_images():
    assert_gradients_of_autograd(PooledConvs, (8, 8), (3, 3), (1, 1), (2, 4, 3), 33)


#: channels done by vectors of each width, and one by one
CHANNELS = 16 + 8 + 4 + 3


def _pooled(four):
    """What pooling makes of four outputs, alike in all channels: [channels]."""
    copies = [(torch.ones(CHANNELS, 1, 1, 1), torch.zeros(CHANNELS))]
    stem = PooledConvs(copies, [0], torch.tensor(four).view(1, 1, 2, 2))
    (batch,) = stem.batches(torch.arange(1), None, 1)
    return stem.forward(batch)[0]


@pytest.mark.parametrize("place", range(4))
def test_pooled_convs_propagates_nan(place):
    four = [3.0, 1.0, 2.0, -1.0]
    four[place] = float("nan")
    assert _pooled(four).isnan().all()


def test_pooled_convs_breaks_ties_of_outputs_like_torch():
    """All outputs of a filter of zeros are its bias: which patch the gradient is of tells which was taken."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 6, 6)
    weight, bias = torch.zeros(CHANNELS, 3, 3, 3, requires_grad=True), torch.ones(CHANNELS, requires_grad=True)
    pooled = F.max_pool2d(F.conv2d(images, weight, bias), 2).relu()
    slope = torch.randn_like(pooled)
    (pooled * slope).sum().backward()
    with torch.no_grad():
        stem, target = PooledConvs([(weight, bias)], [0], images), torch.zeros_like(weight)
        stem.set_targets([(target, torch.zeros_like(bias))])
        stem.forward(*stem.batches(torch.arange(2), None, 2))
        stem.backward(slope.flatten(1))
        stem.accumulate(1.0)
    torch.testing.assert_close(target, weight.grad, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    side=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    hidden=st.lists(st.integers(1, 45) | st.integers(46, 130), max_size=3),
    classes=st.integers(2, 11),
    count=st.integers(1, 25),
    batch=st.integers(1, 19),
    epochs=st.integers(1, 9),
    momentum=st.sampled_from([0.0, 0.7]),
    decay=st.sampled_from([0.0, 0.1]),
    proximal=st.sampled_from([0.0, 0.2]),
    control=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3]),
)
def test_native_perceptron_matches_loop_at_any_shape(
    side, hidden, classes, count, batch, epochs, momentum, decay, proximal, control, temperature
):
    recipe = Recipe((Phase(epochs),), batch, False, 0.01, momentum, decay, decay_biases=False, proximal=proximal)
    found, wanted = trained_by_both(side, hidden, classes, count, recipe, temperature, control)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-10, atol=1e-10)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-10, abs=1e-10) and found.steps == wanted.steps


def trained_by_both(
    side, hidden, classes, count, recipe, temperature=1.0, control=False, dtype=torch.float64, scale=1.0
):
    """What the native engine and the plain loop make of one client, whose first weights are ``scale`` times usual."""
    network = Network(MlpSettings("mlp", "mlp", hidden, "logits"), (1, *side), classes)
    draws = torch.Generator().manual_seed(count)
    pixels = torch.randint(256, (count, 1, *side), generator=draws, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=draws)
    data = ImageData(pixels, labels, torch.tensor([0.5]), torch.tensor([0.3]))
    weights, buffers = flat.initial(network, 1)
    pull = torch.randn(len(weights), generator=draws, dtype=dtype) / 20 if control else None
    objective = Objective(cross_entropy, vars(CrossEntropy(temperature=temperature)))
    start = ClientModel(weights.to(dtype) * scale, buffers)
    request = LocalTraining(0, 1, 0, start, torch.arange(count), torch.arange(count), recipe, pull, objective)
    engines = (
        Lean([network], data, data, dtype, workers=1, threads=1, make_client=make_native_client),
        Loop(network, data, data, torch.device("cpu"), dtype),
    )
    return [engine.train([request])[0] for engine in engines]


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("proximal", [0.0, 0.2])
def test_native_gram_matches_loop_with_momentum_and_proximal(momentum, proximal):
    """Each kind of phase has a velocity of its own, as separate optimizers have."""
    phases = Phase(3, "body"), Phase(2, "head"), Phase(4), Phase(2, "body")
    recipe = Recipe(phases, 8, False, 0.05, momentum, proximal=proximal)
    assert Gram.is_cheaper(25, 81, 40, 9)
    found, wanted = trained_by_both((9, 9), [40, 20], 5, 25, recipe)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-11, atol=1e-11)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_single_precision_is_the_loops_within_rounding(momentum, temperature):
    """Sixteen lanes of 512 bits; logits of hundreds, whose exponentials range over all that there are."""
    recipe = Recipe((Phase(3),), 18, False, 0.001, momentum)
    found, wanted = trained_by_both((9, 9), [215, 100], 21, 40, recipe, temperature, dtype=torch.float32, scale=3.0)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=2e-4, atol=2e-5)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5) and found.loss > 3


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_exponentials_are_as_exact_as_their_type(dtype, rounding):
    """The loss before any step, of logits whose exponentials are not all alike."""
    recipe = Recipe((Phase(1),), 40, False, 0.001)
    found, wanted = trained_by_both((9, 9), [30], 21, 40, recipe, dtype=dtype, scale=3.0)
    assert found.steps == 1 and found.loss == pytest.approx(wanted.loss, rel=rounding)
