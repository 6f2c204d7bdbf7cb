"""The K x K record of small runs, recounted by the plain loop."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.methods.personalization import matrix
from knot_runner.pipelines import scores
from knot_runner.pipelines.clients import FederatedContext
from knot_runner.pipelines.personalization import client_matrix
from tests.golden.messages import refuses
from tests.personal_runs import PERSONAL, run, setup_of
from tests.unit.methods.federated.worlds import make_world, with_rows


def recount(setup, model):
    """Return counts and summed losses [K, K] by the plain loop; ``model(k)``: flat weights of client k."""
    engine = Loop(setup.networks[0], setup.data, setup.test, torch.device("cpu"), torch.float32)
    clients, tests = setup.federation.everyone, setup.federation.rows("test")
    table = np.zeros((len(clients), len(clients)), dtype=int)
    losses = np.zeros(table.shape)
    for k in clients:
        for j in clients:
            rows = tests[j] if j == k else tests[j][~torch.isin(tests[j], tests[k])]
            (logits,) = engine.logits([Inference(ClientModel(model(k), torch.empty(0)), rows)])
            table[k, j] = int((logits.argmax(1) == setup.test.labels[rows]).sum())
            losses[k, j] = float(functional.cross_entropy(logits.double(), setup.test.labels[rows], reduction="sum"))
    return table, losses


def test_client_matrix_matches_recount_for_global_model(tmp_path):
    result, record = run(tmp_path, "method=fedavg", "evaluate.matrix=end", "training.lr=0.1")
    setup = setup_of("method=fedavg")
    (folder,) = (path.parent for path in tmp_path.glob("*/*/*/result.json"))
    kept = load_file(folder / "model.safetensors")
    weights = torch.cat([kept[field.name].flatten() for field in setup.federation.layout.parameters])
    table, _ = recount(setup, lambda client: weights)
    assert record["correct"].tolist() == table.tolist() and table.sum() > 0
    assert record["global_correct"].tolist() == table.diagonal().tolist()
    sizes = [len(rows) for rows in setup.federation.rows("test")]
    assert record["examples"].tolist() == [sizes] * len(sizes)
    own = [table[k, k] / sizes[k] for k in range(len(sizes)) if sizes[k]]
    assert result["metrics"]["id_accuracy"]["ALL"] == pytest.approx(np.mean(own))
    assert result["metrics"]["client_accuracy"]["unweighted"] == pytest.approx(np.mean(own))
    assert result["metrics"]["clients_hurt"]["ALL"] == 0


def test_deployed_matrix_limits_models_in_memory(monkeypatch):
    """Each client's model is built when its logits are computed, so memory does not grow with the number of clients."""
    setup = setup_of("method=fedavg")
    federation, start = setup.federation, setup.federation.model
    plain = Loop(setup.networks[0], setup.data, setup.test, torch.device("cpu"), torch.float32)
    made, held = [], []

    class Engine:
        def logits(self, requests):
            held.append((len(made), len(requests)))
            return plain.logits(requests)

    def deployed(config, state, federation, client):
        made.append(client)
        return ClientModel(start.weights * (1 + client), start.buffers)

    context = SimpleNamespace(method=SimpleNamespace(batchnorm="shared"))
    run = FederatedContext(context, setup, SimpleNamespace(one_model=False, deployed=deployed), Engine())
    whole = client_matrix.deployed_matrix(run, {})
    table, _ = recount(setup, lambda client: start.weights * (1 + client))
    assert whole.correct.tolist() == table.tolist() and held == [(6, 6)]
    values = len(setup.test.labels) * setup.networks[0].classes + federation.layout.size
    for at_once, parts in (
        (2 * values, [(2, 2), (4, 2), (6, 2)]),
        (1, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]),
    ):
        made.clear(), held.clear()
        monkeypatch.setattr(scores, "VALUES_AT_ONCE", at_once)
        monkeypatch.setattr(scores, "FEWEST_AT_ONCE", 1)
        found = client_matrix.deployed_matrix(run, {})
        assert held == parts and torch.equal(found.correct, whole.correct) and torch.equal(found.loss, whole.loss)


@pytest.mark.parametrize(("method", "points"), [("fedper", None), ("finetune", 3)])
def test_client_matrix_matches_recount_for_own_models(tmp_path, method, points, monkeypatch):
    """The plain loop gives the counts and losses of each model that the engine evaluated."""
    asked, logits = [], Lean.logits

    def spied(self, requests):
        asked.extend(replace(each, model=ClientModel(each.model.weights.clone(), None)) for each in requests)
        return logits(self, requests)

    monkeypatch.setattr(Lean, "logits", spied)
    own = [f"method={method}", "training.lr=0.1", *(PERSONAL if points else ["evaluate.matrix=end"])]
    _, record = run(tmp_path, *own)
    setup = setup_of(f"method={method}")
    many = [request for request in asked if request.many]
    if points:
        tables = zip(record["correct"], record["loss"], strict=True)
        models = [many[-6 * (points - point) :][:6] for point in range(points)]
    else:
        tables, models, many = [(record["correct"], record["loss"])], [many[:6]], many[:6]
        assert len({request.body for request in models[0]}) == 1 and models[0][0].body
    for (correct, loss), six in zip(tables, models, strict=True):
        table, losses = recount(setup, [request.model.weights for request in six].__getitem__)
        assert correct.tolist() == table.tolist()
        assert np.allclose(loss, losses, rtol=1e-5, atol=1e-6) and (losses > 0).all()


def test_logits_of_labels_requests_by_shared_body():
    """Models with equal bodies share one request, whatever their heads; models with other statistics do not."""
    setup = setup_of("method=fedavg")
    federation, start = setup.federation, setup.federation.model
    weights, head = start.weights, setup.federation.layout.mask("head")
    with_head = ClientModel(weights.masked_scatter(head, torch.arange(float(head.sum()))), start.buffers)
    nudged = weights.clone()
    nudged[~head] = torch.nextafter(weights[~head], torch.tensor(9.0))
    others = [ClientModel(nudged, start.buffers), ClientModel(weights, torch.ones(3))]
    said = []
    engine = SimpleNamespace(logits=lambda asked: said.extend(asked) or [torch.zeros(1)] * len(asked))
    tests = matrix.TestRows.of(federation.rows("test"))
    run = FederatedContext(None, setup, None, engine)
    for models in ([start, with_head, *others, start], [others[0], start]):
        list(client_matrix.logits_on(run, tests, enumerate(models)))
    first, second, *rest = [request.body for request in said]
    assert first == second == rest[2] != "" and rest[:2] == ["", ""]
    assert rest[3] not in ("", first) and rest[4] == ""
    assert all(request.many and torch.equal(request.rows, tests.rows) for request in said)


def with_tests(*clients):
    """Return a federation of five clients in which only ``clients`` have test examples."""
    federation = make_world([]).federation
    own = [rows if client in clients else rows[:0] for client, rows in enumerate(federation.rows("test"))]
    return with_rows(federation, train=federation.rows("train"), test=own)


def test_untested_clients_are_named_or_rejected():
    assert matrix.untested_notes(with_tests(*range(5))) == []
    (note,) = matrix.untested_notes(with_tests(1, 3, 4))
    assert note.startswith("no test examples at 2 of 5 clients (c0, c2): these clients have no ID accuracy")
    (note,) = matrix.untested_notes(with_tests(4))
    assert "4 of 5 clients (c0, c1, c2, ...)" in note
    matrix.check_own_models(None, with_tests(1, 3))
    with refuses():
        matrix.check_own_models(None, with_tests(3))
