"""The first layer by way of the images' inner products is the first layer."""

from dataclasses import replace
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings import MlpSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining
from knot_runner.engine.federated.lean import stems
from knot_runner.engine.federated.lean.client import ManualBackward
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.recipe import Phase, Recipe
from knot_runner.engine.objectives import Objective, cross_entropy
from knot_runner.models.network import Network
from tests.unit.engine.federated.cases import CLASSES, GRAY, images

phases = st.lists(
    st.builds(Phase, st.integers(0, 3), st.sampled_from(["all", "head", "body"])), min_size=1, max_size=3
).map(tuple)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 17), phases=phases, outputs=st.integers(1, 20))
def test_gram_trains_like_loop_at_any_size(size, batch, phases, outputs):
    network = Network(MlpSettings("mlp", "mlp", [outputs, 6], "logits"), GRAY, CLASSES)
    request = _request(network, size, Recipe(phases, batch, False, 0.01), torch.float64)
    request = replace(request, objective=Objective(cross_entropy, {"temperature": 0.5}))
    with _always():
        found = ManualBackward(network, *_data(), torch.float64).train_client(request)
    wanted = Loop(network, *_data(), torch.device("cpu"), torch.float64).train_client(request)
    assert float((found.weights - wanted.weights).abs().max()) < 1e-12 * float(wanted.weights.abs().max())
    assert abs(found.loss - wanted.loss) <= 1e-12 * wanted.loss and found.steps == wanted.steps


def _always():
    """A context in which every layer takes this way (or, with ``share`` 0, none)."""
    return mock.patch.object(stems, "MIN_SAVING", float("inf"))


def _data():
    return images(GRAY), images(GRAY, 40, 1)


def _request(network, size, recipe, dtype):
    weights, buffers = flat.initial(network, 4)
    rows = torch.arange(size)
    return LocalTraining(1, 2, 3, ClientModel(weights.to(dtype), buffers.to(dtype)), rows, rows[:5], recipe)
