"""FedPer and FedRep: whose head is whose, and what trains when."""

import copy
import dataclasses

import pytest
import torch

from knot_runner.engine.federated import flat
from knot_runner.methods.around.server_distillation import ENSEMBLE
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federation import ServerExamples
from tests.feddf_runs import TRANSFER, distill
from tests.golden.messages import refuses
from tests.unit.methods.federated.worlds import World, method_of, normed_world, rounds_of, settings


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_personal_clients_begin_with_averaged_head_on_request(deep, algorithm):
    config, federation = settings(algorithm, aggregation="uniform", first_head="averaged"), deep.federation
    rounds = rounds_of(deep, config, 3)
    state, head, newest = rounds[-1].after, federation.layout.mask("head"), {}
    for one in rounds:
        newest |= {result.client: result.weights[head] for result in one.trained}
    assert set(newest) == {int(key.split("/")[1]) for key in state if key.endswith("/unshared")}
    for client in range(len(federation)):
        model = METHODS[algorithm].deployed(config, state, federation, client).weights
        assert torch.equal(model[~head], state["weights"][~head])
        assert torch.equal(model[head], newest.get(client, state["weights"][head]))
    mean = sum(result.weights for result in rounds[-1].trained) / 3
    torch.testing.assert_close(state["weights"], mean, rtol=1e-13, atol=1e-15)


def test_fedper_last_round_trains_all_heads_alone(deep):
    config, federation = settings("fedper", final_head_epochs=2), deep.federation
    last, head = rounds_of(deep, config, 5)[-1], federation.layout.mask("head")
    state = last.after
    assert [request.client for request in last.requests] == [0, 1, 2, 3, 4]
    assert torch.equal(state["weights"], last.before["weights"])
    for request, result in zip(last.requests, last.trained, strict=True):
        assert torch.equal(result.weights[~head], request.start.weights[~head])
        assert not torch.equal(result.weights[head], request.start.weights[head])
        assert torch.equal(state[f"client/{result.client}/unshared"], result.weights[head])
    assert METHODS["fedper"].plan(config, state, federation, 5) == []


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_personal_heads_teach_and_survive_server_distillation(deep, algorithm):
    """The averaged model learns the mean of what they say; the next round begins with its body, and heads stay."""
    federation = dataclasses.replace(deep.federation, server=ServerExamples(torch.arange(4), TRANSFER, TRANSFER[:0]))
    config, head = settings(algorithm, server_distillation=distill(ensemble="logits")), federation.layout.mask("head")
    for one in rounds_of(World(federation, deep.engine), config, 2):
        (request,) = one.distillation
        asked = [federation.inference(result.client, result.model, TRANSFER, "train") for result in one.trained]
        told = torch.stack(deep.engine.logits(asked)).mean(0)
        torch.testing.assert_close(request.inputs[ENSEMBLE], told, rtol=1e-6, atol=1e-7)
        assert torch.equal(request.start.weights, one.folded["weights"]) and one.row["distill_steps"] > 0
        assert not torch.equal(one.after["weights"][~head], one.folded["weights"][~head])
        for result in one.trained:
            model = METHODS[algorithm].deployed(config, one.after, federation, result.client).weights
            assert torch.equal(model[head], result.weights[head])
            assert torch.equal(model[~head], one.after["weights"][~head])
    if algorithm == "fedper":  # the last round is of heads alone
        config = dataclasses.replace(config, final_head_epochs=1)
        (one,) = rounds_of(World(federation, deep.engine), config, first=4)
        assert "distill_steps" not in one.row and torch.equal(one.after["weights"], one.folded["weights"])


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_personal_heads_match_loop_exchanging_bodies(deep, algorithm):
    """As PFLlib: clients have whole models, of which the server reads and writes the body. Batches are whole."""
    world = deep.with_training(batch_size=24, drop_last=False, local_epochs=3)
    epochs = {"head_epochs": 2} if algorithm == "fedrep" else {}
    config, federation = settings(algorithm, aggregation="uniform", **epochs), world.federation
    state = rounds_of(world, config, 3)[-1].after
    pixels, labels = world.engine.data.pixels, world.engine.data.labels
    models = [copy.deepcopy(world.engine.model) for _ in federation.clients]
    for model in models:
        flat.load_flat(model, federation.model.weights, federation.model.buffers)
    for round in range(3):
        drawn = federation.drawn(round)
        for client in drawn:
            head = set(models[client].head.parameters())
            body = set(models[client].parameters()) - head
            phases = [head, head, body] if algorithm == "fedrep" else [head | body] * 3
            rows = federation.clients[client].train
            for trained in phases:
                loss = torch.nn.functional.cross_entropy(models[client](pixels[rows]), labels[rows])
                for parameter, gradient in zip(trained, torch.autograd.grad(loss, list(trained)), strict=True):
                    parameter.data -= federation.training.lr * gradient
        names = [name for name, _ in models[0].named_parameters() if not name.startswith("head.")]
        bodies = {name: sum(models[client].get_parameter(name).data for client in drawn) / len(drawn) for name in names}
        for model in models:
            for name, mean in bodies.items():
                model.get_parameter(name).data = mean.clone()
    for client, model in enumerate(models):
        actual = METHODS[algorithm].deployed(config, state, federation, client).weights
        torch.testing.assert_close(actual, flat.flat_vectors(model)[0], rtol=1e-12, atol=1e-13)


def test_fedbn_keeps_normalization_with_clients(linear):
    """FedBN (Li et al. 2021): all but the normalization layers is averaged; clients keep these and their statistics."""
    world = normed_world(linear)
    config = settings(shared=["!*norm*"], batchnorm="local", aggregation="uniform")
    layout, federation = world.federation.layout, world.federation
    normed = torch.zeros(layout.size, dtype=torch.bool)
    for field in layout.parameters:
        normed[field.start : field.stop] = "norm" in field.name
    assert 0 < int(normed.sum()) < layout.size
    newest = {}
    for one in rounds_of(world, config, 2):
        mean = sum(result.weights for result in one.trained) / len(one.trained)
        torch.testing.assert_close(one.after["weights"][~normed], mean[~normed], rtol=1e-12, atol=1e-14)
        assert torch.equal(one.after["weights"][normed], federation.model.weights[normed])
        assert one.row["bytes_up"] == 8 * len(one.trained) * (int((~normed).sum()) + layout.buffer_size)
        newest |= {result.client: result for result in one.trained}
    for client, result in newest.items():
        model = method_of(config).deployed(config, one.after, federation, client)
        assert torch.equal(model.weights[normed], result.weights[normed]) and torch.equal(model.buffers, result.buffers)
        assert torch.equal(model.weights[~normed], one.after["weights"][~normed])


def test_personal_methods_refuse_unsuitable_models_and_patterns(deep, linear):
    for world, config in (
        (deep, settings("fedrep", head_epochs=2)), (linear, settings("fedper")), (linear, settings("fedrep")),
        *((deep, settings(shared=patterns)) for patterns in (["hed"], ["!body.9"], ["head", "!head"], ["!*"])),
    ):  # fmt: skip
        with refuses():
            rounds_of(world, config)


def test_shared_takes_patterns_by_name(deep):
    layout = deep.federation.layout
    head, bias = layout.mask("head"), layout.biases()
    assert torch.equal(layout.matching(("head",)), head) and torch.equal(layout.matching(("!head",)), ~head)
    assert torch.equal(layout.matching(("*.bias",)), bias)
    assert torch.equal(layout.matching(("*.bias", "!head")), bias & ~head)
