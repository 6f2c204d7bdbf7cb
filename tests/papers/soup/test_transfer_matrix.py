"""The transfer matrix: gradients against autograd, starts exactly, and lambda where theory knows it."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.methods.personalization import PERSONALIZATIONS, combine
from knot_runner.models.network import build_network
from knot_runner.papers.soup import transfer_matrix
from knot_runner.papers.soup.settings import TransferMatrixSettings
from tests.changed_settings import built
from tests.golden.messages import refuses
from tests.unit.engine.federated.cases import MODELS
from tests.unit.methods.federated.worlds import with_rows
from tests.unit.methods.personal_world import after_rounds, on_network, run_kind

KIND = PERSONALIZATIONS["transfer_matrix"]


def spec(**changes):
    plain = {"kind": "transfer_matrix", "lr": 0.1, "epochs": 2, "steps": 4, "checkpoints": 2}
    return built(TransferMatrixSettings, "base/personalization/transfer_matrix.yaml", **{**plain, **changes})


def autograd_gradient(network, federation, trained, matrix, data):
    """dL_k / dlambda with lambda a leaf, in float64: [K, K]."""
    leaf = matrix.clone().requires_grad_()
    model = build_network(network).double().eval()
    total = 0.0
    for client in federation.everyone:
        start = federation.start(client).weights.double()
        weights = start + sum(leaf[client, i] * (one.weights.double() - start) for i, one in enumerate(trained))
        values = flat.views(weights, federation.layout.parameters)
        values |= flat.views(trained[client].buffers.double(), federation.layout.buffers)
        rows = federation.clients[client].valid
        logits = torch.func.functional_call(model, values, (data.pixels[rows].double(),))
        total = total + F.cross_entropy(logits, data.labels[rows])
    total.backward()
    return leaf.grad


@pytest.mark.parametrize(("name", "engine"), [
    ("mlp", Loop), ("mlp", Lean), ("cnn", Lean), ("resnet_batch", Loop), ("resnet_group", Lean),
])  # fmt: skip
def test_matrix_gradient_is_that_of_autograd(name, engine):
    """Of the models as an engine has them, through its one step at a large rate."""
    dtype, within = (torch.float64, 1e-11) if engine is Loop else (torch.float32, 1e-6)
    network = MODELS[name]
    federation, trained, data = on_network(network, dtype)
    state = combine.stacked_models(trained) | {"lambda": torch.zeros(3, 3, dtype=torch.float64)}
    matrix = torch.tensor([[0.9, -0.3, 0.1], [0, 0.5, 0.5], [0.2, 0.2, 1.2]], dtype=torch.float64)
    options = (torch.device("cpu"), dtype) if engine is Loop else (dtype, 1, 1)
    made = engine(network if engine is Loop else [network], data, data, *options)
    requests = KIND.plan(spec(), {**state, "lambda": matrix}, federation, 1)
    found = transfer_matrix.matrix_gradient(federation, state, list(zip(requests, made.train(requests), strict=True)))
    wanted = autograd_gradient(network, federation, trained, matrix, data)
    assert (found - wanted).abs().max() <= within * wanted.abs().max()


@pytest.mark.parametrize("starts", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_of_identity_zero_and_mean(starts, dtype):
    """I gives the trained models and 0 the starts, bit for bit; 1/K the mean of all updates."""
    draws = torch.Generator().manual_seed(0)
    scales = 10.0 ** torch.randint(-12, 3, (5, 50), generator=draws)  # so that W_0 + (W_k - W_0) rounds
    trained = (torch.randn(5, 50, generator=draws, dtype=torch.float64) * scales).to(dtype)
    models = [torch.randn(50, generator=draws, dtype=torch.float64).to(dtype) for _ in range(starts)]
    own = [models[client % starts] for client in range(5)]
    updates = combine.Updates.of(own, trained)
    assert len(updates.starts) == starts
    config = {start: transfer_matrix.start_matrix(spec(start=start), 5) for start in ("identity", "zero")}
    assert torch.equal(updates.applied(config["identity"]), trained)
    assert torch.equal(updates.applied(config["zero"]), torch.stack(own))
    change = sum((one.double() - start.double()) for one, start in zip(trained, own, strict=True)) / 5
    mean = torch.stack([start.double() + change for start in own])
    assert torch.allclose(updates.applied(torch.full((5, 5), 0.2).double()).double(), mean, rtol=1e-6, atol=1e-5)


def test_products_of_updates_block_by_block(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    starts, trained = torch.randn(5, 33, generator=draws), torch.randn(5, 33, generator=draws)
    updates, (first, second) = combine.Updates.of(list(starts), trained), torch.randn(2, 2, 33, generator=draws)
    moved = list(zip(first, second, strict=True))
    whole = updates.products(), updates.products(moved), updates.applied(torch.eye(5) + 0.5)
    monkeypatch.setattr(combine, "STACKED_VALUES", 20)
    parts = updates.products(), updates.products(moved), updates.applied(torch.eye(5) + 0.5)
    changes = (trained - starts).double()
    by_hand = changes @ changes.T, (first - second).double() @ changes.T
    for first, second, third in zip(whole[:2], parts[:2], by_hand, strict=True):
        assert torch.allclose(first, second, rtol=1e-12) and torch.allclose(first, third, atol=1e-5)
    assert torch.equal(whole[2], parts[2])


def test_matrix_step_by_hand():
    matrix, gradient = torch.tensor([[0.5, 0.1], [0.0, 1.0]]).double(), torch.tensor([[2.0, 4.0], [-8, 0]]).double()
    config = spec(matrix_lr=0.5)
    found = transfer_matrix.matrix_step(config, matrix, gradient, 4.0)
    assert torch.allclose(found, matrix - 0.5 * (gradient / 4))
    assert found[0, 1] < 0
    clamped = transfer_matrix.matrix_step(dataclasses.replace(config, signed=False), matrix, gradient, 4.0)
    assert torch.equal(clamped, found.clamp(min=0))


def linear_loss(data, weights, rows):
    """Of the model without hidden layers: four pixels, three classes."""
    return F.cross_entropy(data.pixels[rows].flatten(1) @ weights[:12].view(3, 4).T + weights[12:], data.labels[rows])


def test_transfer_matrix_rounds_by_hand():
    """Four steps in float64 against autograd: lambda, scale, every measured model."""
    federation, engine = after_rounds(hidden=(), starts=2, groups=[0, 1, 0, 1, 0])
    config = spec(matrix_lr=0.7)
    state, measured, log = run_kind(KIND, config, federation, engine)
    starts = torch.stack([federation.start(client).weights for client in range(5)])
    updates = torch.stack([measured[0][client].weights for client in range(5)]) - starts
    scale = float(torch.linalg.eigvalsh(updates @ updates.T).max())
    assert float(state["scale"]) == pytest.approx(scale, rel=1e-12)
    matrix = torch.eye(5, dtype=torch.float64)
    losses = []
    for step in range(5):
        leaf = matrix.clone().requires_grad_()
        models = starts + leaf @ updates
        for k in range(5) if step in (0, 2, 4) else ():
            assert torch.allclose(measured[1 + step // 2][k].weights, models[k], atol=1e-12)
        total = sum(linear_loss(engine.data, models[k], federation.clients[k].valid) for k in range(5))
        (gradient,) = torch.autograd.grad(total, leaf)
        if step < 4:
            losses.append(float(total.detach()) / 5)
            matrix = matrix - 0.7 * (gradient / scale)
    assert torch.allclose(state["lambda"], matrix, atol=1e-9) and torch.equal(state["kept/lambda"], state["lambda"])
    assert [row["valid_loss"] for row in log[1:]] == pytest.approx(losses, rel=1e-9)
    arrays, found = KIND.finish(config, federation, state, None)
    assert found["transfer"]["own"] == pytest.approx(float(matrix.diag().mean())) and found["transfer"]["step"] == 4
    assert np.allclose(arrays["lambda"], matrix) and arrays["groups"].tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("start", ["zero", "identity"])
def test_points_begin_where_lambda_does(start):
    federation, engine = after_rounds()
    measured = run_kind(KIND, spec(start=start), federation, engine)[1]
    trained, first = measured[0], measured[1]
    for client in federation.everyone:
        starts = {"zero": federation.start(client).weights, "identity": trained[client].weights}
        torch.testing.assert_close(first[client].weights, starts[start], rtol=0, atol=0)
    points = KIND.points(spec(start=start))
    assert [point.step for point in points] == [0, 0, 2, 4] and points[-1].phase == "combined"
    assert points[1].alpha == (0 if start == "zero" else 1) and not points[1].mixed
    assert points[1].epochs == (0 if start == "zero" else 2)


def test_early_stopping_keeps_best_lambda_on_other_half():
    federation, engine = after_rounds(hidden=())
    config = spec(early_stop=True, matrix_lr=3.0, steps=6, checkpoints=3)
    for client in federation.everyone:
        learned, stopping = transfer_matrix.held_out_rows(config, federation, client)
        assert sorted([*learned.tolist(), *stopping.tolist()]) == federation.clients[client].valid.tolist()
        assert len(learned) - len(stopping) in (0, 1)
    state, measured, rows = run_kind(KIND, config, federation, engine)
    losses = [row["stop_loss"] for row in rows[1:]]
    assert len(losses) == 7  # of every lambda, the last one too
    best = losses.index(min(losses))
    assert int(state["kept/step"]) == best and float(state["kept/loss"]) == losses[best]
    mean = 0.0
    for client, model in enumerate(transfer_matrix.matrix_models(federation, state, state["kept/lambda"])):
        assert torch.equal(measured[4][client].weights, model.weights)
        rows = transfer_matrix.held_out_rows(config, federation, client)[1]
        mean += float(linear_loss(engine.data, model.weights, rows)) / 5
    assert mean == pytest.approx(losses[best], rel=1e-9)


def test_clients_without_held_out_keep_starting_lambda():
    federation, engine = after_rounds()
    valid = [rows if client else rows[:0] for client, rows in enumerate(federation.rows("valid"))]
    federation = with_rows(federation, valid=valid)
    state, _, _ = run_kind(KIND, spec(), federation, engine)
    assert torch.equal(state["lambda"][0], torch.eye(5, dtype=torch.float64)[0])
    assert (state["lambda"][1:] != torch.eye(5)[1:]).all()
    assert "1 clients have no held-out examples" in KIND.check(spec(), federation)[1]
    none = with_rows(federation, valid=[rows[:0] for rows in valid])
    with refuses():
        KIND.check(spec(), none)
    single = with_rows(federation, valid=[rows[:1] for rows in valid])
    with refuses():
        KIND.check(spec(early_stop=True), single)


def linear_case(seed):
    """Inputs [N, d] and shares [K, K] whose rows sum to 1."""
    draws = np.random.default_rng(seed)
    inputs = np.linalg.qr(draws.normal(size=(20, 6)))[0] * np.sqrt(20) * draws.uniform(0.8, 1.2, 6)
    return torch.from_numpy(inputs), torch.from_numpy(draws.dirichlet(np.ones(3), 3))


@examples(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_transfer_weights_of_distributions_solve_the_mixture(seed):
    """For linear models on one design, the solution for the mean sum_i p_i D_i is sum_i p_i W_i."""
    inputs, shares = linear_case(seed)
    targets = torch.randn(3, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    optima = torch.stack([torch.linalg.lstsq(inputs, one).solution for one in targets])
    updates = combine.Updates.of([torch.zeros(6, dtype=torch.float64)] * 3, optima)
    for k, model in enumerate(updates.applied(shares)):
        stacked = torch.cat([shares[k, i].sqrt() * inputs for i in range(3)])
        pooled = torch.cat([shares[k, i].sqrt() * targets[i] for i in range(3)])
        assert torch.allclose(model, torch.linalg.lstsq(stacked, pooled).solution, atol=1e-10)


@examples(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 7), st.booleans())
def test_matrix_facts_and_auc_match_references(seed, clients, ties):
    draws = np.random.default_rng(seed)
    matrix = draws.integers(0, 3, (clients, clients)) if ties else draws.normal(size=(clients, clients))
    groups = np.array([0, 1, *draws.integers(0, 2, clients - 2)])
    off = ~np.eye(clients, dtype=bool)
    same = (groups[:, None] == groups)[off]
    found = combine.same_group_auc(torch.tensor(matrix).double(), groups.tolist())
    within, across = matrix[off][same][:, None], matrix[off][~same]
    assert found == pytest.approx(((within > across) + 0.5 * (within == across)).mean(), abs=1e-12)
    facts = combine.matrix_facts(torch.tensor(matrix).double(), groups.tolist())
    assert facts["within"] == pytest.approx(matrix[off][same].mean())
    assert facts["across"] == pytest.approx(matrix[off][~same].mean())
    assert facts["negative"] == pytest.approx((matrix[off] < 0).mean())
    assert facts["others"] == pytest.approx(matrix[off].mean())
    assert facts["own"] == pytest.approx(np.diag(matrix).mean())
    alike = [1] * clients
    assert combine.same_group_auc(torch.tensor(matrix).double(), alike) is None
    assert "across" not in combine.matrix_facts(torch.tensor(matrix).double(), alike)
    assert "auc" not in combine.matrix_facts(torch.tensor(matrix).double(), None)
