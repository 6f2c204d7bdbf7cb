"""The first layer by way of the images' inner products is the first layer."""

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings import MlpSettings
from knot_runner.engine.federated.cohort import Phase, Recipe
from knot_runner.engine.federated.lean import stems
from knot_runner.engine.objectives import CrossEntropy
from knot_runner.models.network import Network
from tests.unit.engine.federated.cases import CLASSES, GRAY, Case, assert_alike, cohort, made

phases = st.lists(
    st.builds(Phase, st.integers(0, 3), st.sampled_from(["all", "head", "body"])), min_size=1, max_size=3
).map(tuple)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), batch=st.integers(1, 17), phases=phases, outputs=st.integers(1, 20))
def test_gram_trains_like_loop_at_any_size(size, batch, phases, outputs):
    network = Network(MlpSettings("mlp", "mlp", [outputs, 6], "logits"), GRAY, CLASSES)
    requests = cohort(network, Case(Recipe(phases, batch, False, 0.01), options=CrossEntropy(0.5)), sizes=(size,))
    with mock.patch.object(stems, "MIN_SAVING", float("inf")):  # every layer takes this way
        found = made("lean", network).train(requests)
    assert_alike(found, made("loop", network).train(requests))
