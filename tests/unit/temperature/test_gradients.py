"""Fig. 1: gradient norms against one image at a time."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from knot_runner.methods.temperature_probe import Probed, gradient_arrays, gradient_norms, logit_gradients
from tests.unit.temperature.probed import HP, MODELS, data_of, images, model_of


@given(
    arrays.arrays(np.float64, (3, 4), elements=st.floats(-6, 6)),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.sampled_from([4.0, 1.0, 0.3]),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_logit_gradients_are_those_of_the_tempered_loss(z, y, temperature):
    logits, labels = torch.tensor(z, requires_grad=True), torch.tensor(y)
    F.cross_entropy(logits / temperature, labels, reduction="sum").backward()
    found = logit_gradients(logits.detach(), labels, temperature)
    torch.testing.assert_close(found, logits.grad, rtol=1e-9, atol=1e-12)
    closed = (torch.softmax(logits.detach() / temperature, 1) - F.one_hot(labels, 4)) / temperature
    torch.testing.assert_close(found, closed, rtol=1e-9, atol=1e-12)


def test_logit_gradients_keep_their_digits_where_the_truth_is_all_but_certain():
    logits = torch.tensor([[30.0, 0.0, 0.0]])  # 1 - p = 1.9e-13 is lost in float32
    (found,) = logit_gradients(logits, torch.tensor([0]), 1.0)
    assert float(found[0]) == pytest.approx(-2 * math.exp(-30), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_norms_equal_those_of_one_image_at_a_time(name):
    model, (x, y), temperatures = model_of(MODELS[name]), images(6), [4.0, 1.0, 0.25]
    norms, right = gradient_norms(model, x, y, temperatures)
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    layer.weight.requires_grad_()
    for i in range(len(x)):
        logits = model(x[i : i + 1])
        assert bool(right[i]) == (int(logits.argmax()) == int(y[i]))
        for k, temperature in enumerate(temperatures):
            loss = F.cross_entropy(logits / temperature, y[i : i + 1])
            (expected,) = torch.autograd.grad(loss, layer.weight, retain_graph=True)
            assert float(norms[k, i]) == pytest.approx(float(expected.norm()), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("count", "done"), [(5, [0, 5]), (600, [0, 256, 512, 600])])
def test_batches_of_256_images_are_joined_and_counted(count, done):
    model, watched = model_of(MODELS["mlp"], torch.float32), []
    probed, rows = Probed(model, data_of(count + 3), torch.device("cpu")), torch.arange(count).flip(0)
    found = gradient_arrays(HP, probed, rows, lambda *event: watched.append(event))
    states = ["" for _ in done[1:]] + ["done"]
    assert watched == [("gradient norms", at, count, state) for at, state in zip(done, states, strict=True)]
    ((x, y),) = probed.batches(rows, count)
    norms, right = gradient_norms(model, x, y, HP.temperatures)
    torch.testing.assert_close(found["gradients.norm"], norms)
    assert found["gradients.right"].bool().tolist() == right.tolist()
