"""An objective of one's own trains alike in every engine; KNOT's distillation on images is the loop's, too."""

import threading
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.federated import flat, loop
from knot_runner.engine.federated.cohort import ClientModel, LocalProgram, LocalResult
from knot_runner.engine.objectives import Objective
from knot_runner.engine.training import mean_loss, take_step
from knot_runner.models.network import Network
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import CLASSES, LINEAR, MODELS, RECIPES, assert_alike, cohort, images, made


def pulled_to_start(settings, inputs):
    """Squared distance from the target logits of each row, and KL divergence from what the start said of it."""
    rows = {"targets": inputs.tensors["targets"], "start": torch.log_softmax(inputs.start_logits(), 1)}

    def loss(logits, rows):
        log_p = torch.log_softmax(logits, 1)
        kept = (rows["start"].exp() * (rows["start"] - log_p)).sum(1)
        return (logits - rows["targets"]).square().mean(1) + settings["weight"] * kept

    return rows, loss


def near_start(settings, inputs):
    """Cross-entropy; features stay near those of the start and go along with those of another model."""
    rows = {"labels": inputs.labels, **{name: inputs.features(name) for name in ("start", "last")}}

    def loss(logits, rows, features):
        pull = (features - rows["start"]).square().mean(1) - settings["weight"] * (features * rows["last"]).mean(1)
        return F.cross_entropy(logits, rows["labels"], reduction="none") + pull

    return rows, loss


OWN = Objective(pulled_to_start, {"weight": 0.5})
FEATURES = Objective(near_start, {"weight": 0.5}, reads_features=True)
HIDDEN = Network(MlpSettings("mlp", "mlp", [6], "logits"), LINEAR.inputs, CLASSES)


def asked(network, recipe, objective, names=("targets",), seed=0):
    """The cohort of a recipe with ``objective``, whose inputs are random logits of each row."""
    draws = torch.Generator().manual_seed(seed)
    for request in cohort(network, RECIPES[recipe]):
        shape = len(request.rows), CLASSES
        inputs = {name: torch.randn(shape, generator=draws, dtype=torch.float64) for name in names}
        last = ClientModel(request.start.weights.flip(0) / 2, request.start.buffers)
        yield replace(request, objective=objective, inputs=inputs, models={"last": last})


@pytest.mark.parametrize("objective", [OWN, FEATURES], ids=lambda objective: objective.name)
@pytest.mark.parametrize("recipe", ["everything", "drop_last"])
@pytest.mark.parametrize(("engine", "model"), [  # lean trains a resnet in the loop itself
    ("lean", "mlp_softmax"), ("lean", "cnn"),
    ("stacked", "mlp_softmax"), ("stacked", "cnn"), ("stacked", "resnet_group"),
])  # fmt: skip
def test_any_objective_trains_as_in_the_loop(engine, model, recipe, objective):
    network = MODELS[model]
    requests = list(asked(network, recipe, objective))
    assert_alike(made(engine, network).train(requests), made("loop", network).train(requests), 1e-11)


@pytest.mark.parametrize("engine", ["loop", "lean", "stacked", "workers"])
def test_objective_of_features_matches_steps_by_hand(engine):
    """A layer of six units, two steps on all images at once."""
    name, workers = ("lean", 2) if engine == "workers" else (engine, 1)
    requests = list(asked(HIDDEN, "plain", FEATURES))[:2]
    whole = replace(requests[0].recipe, batch_size=64, lr=0.1)
    pool = made(name, HIDDEN, workers=workers)
    results = pool.train([replace(request, recipe=whole) for request in requests])
    pool.close()
    data = images(HIDDEN.inputs)
    for request, actual in zip(requests, results, strict=True):
        x = (data.pixels[request.rows].double().flatten(1) / 255 - data.mean.double()) / data.std.double()
        labels = data.labels[request.rows]

        def outputs(weights, x=x):
            first, bias, head, last_bias = weights.split([6 * x.shape[1], 6, 6 * CLASSES, CLASSES])
            features = torch.relu(x @ first.view(6, -1).T + bias)
            return features, features @ head.view(CLASSES, 6).T + last_bias

        start, last = (outputs(model.weights)[0] for model in (request.start, request.models["last"]))
        weights = request.start.weights.clone()
        for _ in range(2):
            weights.requires_grad_()
            features, logits = outputs(weights)
            own = (features - start).square().mean(1) - 0.5 * (features * last).mean(1)
            hard = torch.logsumexp(logits, 1) - logits[torch.arange(len(x)), labels]
            (slope,) = torch.autograd.grad((hard + own).mean(), weights)
            weights = (weights - 0.1 * slope).detach()
        torch.testing.assert_close(actual.weights, weights, rtol=0, atol=1e-7)


def around_own_mean(settings, inputs):
    """What a client's loss may not do: its tensor is no row."""
    mean = inputs.features("start").mean(0)
    return {"labels": inputs.labels}, lambda logits, rows, features: (features - mean).square().mean(1)


def test_stacked_refuses_losses_that_differ_beside_their_rows():
    requests = list(asked(HIDDEN, "decay", Objective(around_own_mean, {}, reads_features=True)))
    with refuses():
        made("stacked", HIDDEN).train(requests)
    alone = made("stacked", HIDDEN).train(requests[:1])  # of features alone: the head only decays
    wanted = made("loop", HIDDEN).train(requests)
    assert_alike(alone, wanted[:1], 1e-11)
    assert_alike(made("lean", HIDDEN).train(requests), wanted, 1e-11)
    head, decay = slice(-CLASSES * 7, None), (1 - 0.1 * 0.1) ** alone[0].steps
    torch.testing.assert_close(alone[0].weights[head], requests[0].start.weights[head] * decay, rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ["loop", "lean", "stacked"])
def test_unknown_model_of_features_is_refused(engine):
    requests = [replace(request, models={}) for request in asked(HIDDEN, "plain", FEATURES)]
    with refuses():
        made(engine, HIDDEN).train(requests)


def copied(settings, work):
    """A program that trains a copy of the model on the request's objective."""
    rows, loss = work.objective()
    copy = deepcopy(work.model)
    optimizer = work.optimizer(copy)
    for batch in work.batches():
        take_step(optimizer, mean_loss(copy, batch, loss, rows))
    return LocalResult(0.0, 1, {"weights": flat.flat_vectors(copy)[0]})


def test_copies_of_a_model_have_features_of_their_own():
    (request, *_) = asked(HIDDEN, "plain", FEATURES)
    (wanted,) = made("loop", HIDDEN).train([request])
    (actual,) = made("lean", HIDDEN).train([replace(request, program=LocalProgram(copied))])
    torch.testing.assert_close(actual.kept["weights"], wanted.weights, rtol=0, atol=1e-12)


def test_held_out_examples_have_features_of_their_own(monkeypatch):
    (request, *_) = asked(HIDDEN, "plain", FEATURES)
    held = replace(request, held=8, recipe=replace(request.recipe, check=1, patience=2))
    (whole,) = made("loop", HIDDEN).train([held])
    monkeypatch.setattr(loop, "INFERENCE_ROWS", 3)
    assert_alike(made("loop", HIDDEN).train([held]), [whole], 1e-12)


def test_objectives_beside_each_other_stay_apart():
    network = MODELS["mlp"]
    requests = list(asked(network, "plain", OWN))
    other = replace(requests[1], objective=Objective(OWN.make, {"weight": 3.0}))
    plain = replace(requests[2], objective=Objective(), inputs={})
    mixed = [requests[0], other, plain, requests[3]]
    wanted = made("loop", network).train(mixed)
    assert_alike(made("stacked", network).train(mixed), wanted, 1e-11)
    assert not torch.equal(wanted[1].weights, made("loop", network).train(requests)[1].weights)


def pulled(settings, work):
    loss, steps = work.train()
    with torch.no_grad():
        for field, parameter in zip(work.layout.parameters, work.model.parameters(), strict=True):
            to = work.tensors["to"][field.start : field.stop].view(field.shape)
            parameter += settings["share"] * (to - parameter)
    order = torch.cat([positions for positions, _ in work.batches()])
    return LocalResult(loss, steps, {"order": order, "scalar": torch.tensor(settings["share"])})


def broken(settings, work):
    return LocalResult(0.0, 1, {"what": torch.tensor([1.0, float("nan")])})


NETWORK = MODELS["mlp"]


def requests():
    """A cohort, all but the third with a program; and the vector to which those pull."""
    cohort_ = cohort(NETWORK, RECIPES["plain"])
    to = torch.linspace(-1, 1, len(cohort_[0].start.weights), dtype=torch.float64)
    program = LocalProgram(pulled, {"share": 0.25}, {"to": to})
    return [replace(one, program=program) if index != 2 else one for index, one in enumerate(cohort_)], to


@pytest.fixture(scope="module")
def expected():
    return made("loop", NETWORK).train(requests()[0])


def test_local_program_changes_weights_and_returns_kept_values(expected):
    asked, to = requests()
    plain = made("loop", NETWORK).train([replace(request, program=None) for request in asked])
    for index, (actual, without) in enumerate(zip(expected, plain, strict=True)):
        assert (actual.steps, actual.loss, actual.before) == (without.steps, without.loss, without.before)
        weights = without.weights if index == 2 else 0.75 * without.weights + 0.25 * to
        torch.testing.assert_close(actual.weights, weights, rtol=1e-12, atol=1e-14)
        if index != 2:
            count = len(asked[index].rows)
            assert actual.kept["order"].sort().values.tolist() == sorted([*range(count)] * 2)
            assert float(actual.kept["scalar"]) == 0.25
        else:
            assert actual.kept == {}


@pytest.mark.parametrize(("engine", "workers"), [("lean", 1), ("lean", 2), ("stacked", 1)])
def test_engines_agree(expected, engine, workers):
    trainer = made(engine, NETWORK, workers=workers)
    try:
        actual = trainer.train(requests()[0])
    finally:
        trainer.close()
    for index, (one, same) in enumerate(zip(actual, expected, strict=True)):
        assert set(one.kept) == set(same.kept)
        assert all(torch.equal(one.kept[name], same.kept[name]) for name in same.kept)
        torch.testing.assert_close(one.weights, same.weights, rtol=1e-10, atol=1e-12)
        if index != 2:  # the loop's own numbers
            assert torch.equal(one.weights, same.weights) and one.loss == same.loss


def test_local_program_marks_non_finite_results():
    (request, *_), loop = requests()[0], made("loop", NETWORK)
    actual = loop.train([replace(request, program=LocalProgram(broken)), request])
    assert [one.finite for one in actual] == [False, True]


def heavy(settings, work):
    return LocalResult(0.0, 1, {"kept": work.tensors["sent"] + 1})


def test_lean_pool_exchanges_large_tensors_without_deadlock():
    sent = torch.arange(500_000, dtype=torch.float64)
    program = LocalProgram(heavy, {}, {"sent": sent})
    many = [replace(requests()[0][0], client=number, program=program) for number in range(9)]
    engine, actual = made("lean", NETWORK, workers=2), []
    thread = threading.Thread(target=lambda: actual.extend(engine.train(many)), daemon=True)
    thread.start()
    thread.join(60)
    waits = thread.is_alive()
    engine.close()
    assert not waits
    assert all(torch.equal(one.kept["kept"], sent + 1) for one in actual) and len(actual) == 9
