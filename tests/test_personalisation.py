"""Clients' own models through the command line: the K x K record recounted, shared rounds, kills."""

import functools
import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional

from knot_runner.cli.main import main
from knot_runner.cli.python import compose
from knot_runner.data.images.held_out import hold_out_valid
from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.pipelines.clients.setup import make_setup
from knot_runner.pipelines.context import Services
from knot_runner.pipelines.personalisation import client_matrix, personalised
from tests.forked import Forked, there
from tests.tiny import TINY_IMAGES, TINY_TEXTS, replaced

PERSONAL = ["method.personalisation.lr=0.05", "method.personalisation.epochs=4", "method.personalisation.saves=2"]
ALPHAS = "method.personalisation.alphas=[0,0.5,1]"


def run(out, *overrides):
    """The record of one run: its result, and the arrays of the K x K record."""
    before = set(out.glob("*/*/*/result.json"))
    assert main([*replaced(TINY_IMAGES, *overrides), f"paths.out={out}"]) == 0
    (found,) = set(out.glob("*/*/*/result.json")) - before
    record = found.parent / "clients.safetensors"
    return json.loads(found.read_text()), load_file(record) if record.exists() else {}


def setup_of(*overrides):
    """The clients of a run, as it deals them, and its network."""
    (job,) = compose(replaced(TINY_IMAGES, *overrides))
    context = SimpleNamespace(settings=job.settings, hp=job.method, services=Services(), data_root=None)
    return make_setup(context)


def recount(setup, model):
    """Counts and summed losses [K, K] by the plain loop, one client and one model after another; ``model(k)``: flat
    weights of client k."""
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


def test_the_record_of_a_global_model_recounted(tmp_path):
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


def test_a_few_models_are_held_at_a_time(monkeypatch):
    """Clients' models are made as they are asked about: memory does not grow with clients x parameters."""
    setup = setup_of("method=fedavg")
    federation, start = setup.federation, setup.federation.model
    plain = Loop(setup.networks[0], setup.data, setup.test, torch.device("cpu"), torch.float32)
    made, held = [], []

    class Engine:
        def logits(self, requests):
            held.append((len(made), len(requests)))
            return plain.logits(requests)

    def deployed(hp, state, federation, client):
        made.append(client)
        return ClientModel(start.weights * (1 + client), start.buffers)

    method, hp = SimpleNamespace(one_model=False, deployed=deployed), SimpleNamespace(batchnorm="shared")
    arguments = method, hp, {}, federation, setup.test.labels, setup.networks[0].classes, Engine()
    whole = client_matrix.deployed_matrix(*arguments)
    table, _ = recount(setup, lambda client: start.weights * (1 + client))
    assert whole.correct.tolist() == table.tolist() and held == [(6, 6)]
    values = len(setup.test.labels) * setup.networks[0].classes + federation.layout.size
    for at_once, parts in (
        (2 * values, [(2, 2), (4, 2), (6, 2)]),
        (1, [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]),
    ):
        made.clear(), held.clear()
        monkeypatch.setattr(client_matrix, "VALUES_AT_ONCE", at_once)
        monkeypatch.setattr(client_matrix, "FEWEST_AT_ONCE", 1)
        found = client_matrix.deployed_matrix(*arguments)
        assert held == parts and torch.equal(found.correct, whole.correct) and torch.equal(found.loss, whole.loss)


@pytest.mark.parametrize(("method", "points"), [("fedper", None), ("finetune", 3)])
def test_the_record_of_own_models_recounted(tmp_path, method, points, monkeypatch):
    """Every count of the models that the engine was asked about, by the plain loop, and their losses."""
    asked, logits, given_back = [], Lean.logits, []
    monkeypatch.setattr(personalised, "give_back_freed", lambda: given_back.append(len(asked)))

    def spied(self, requests):
        asked.extend(replace(each, model=ClientModel(each.model.weights.clone(), None)) for each in requests)
        return logits(self, requests)

    monkeypatch.setattr(Lean, "logits", spied)
    own = [f"method={method}", "training.lr=0.1", *(PERSONAL if points else ["evaluate.matrix=end"])]
    _, record = run(tmp_path, *own)
    assert len(given_back) == (2 if points else 0)  # after every save of clients under way
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


def test_models_with_one_body_are_known_by_it():
    """Of the first model and those that have its body, whatever their heads; not of other bodies and statistics."""
    setup = setup_of("method=fedavg")
    federation, start = setup.federation, setup.federation.model
    weights, head = start.weights, setup.federation.layout.mask("head")
    with_head = ClientModel(federation.layout.with_head(weights, torch.arange(float(head.sum()))), start.buffers)
    assert with_head.weights[head].tolist() == list(range(int(head.sum())))
    assert torch.equal(with_head.weights[~head], weights[~head]) and not torch.equal(with_head.weights, weights)
    nudged = weights.clone()
    nudged[~head] = torch.nextafter(weights[~head], torch.tensor(9.0))
    others = [ClientModel(nudged, start.buffers), ClientModel(weights, torch.ones(3))]
    said = []
    engine = SimpleNamespace(logits=lambda asked: said.extend(asked) or [torch.zeros(1)] * len(asked))
    tests = client_matrix.TestRows.of(federation.rows("test"))
    for models in ([start, with_head, *others, start], [others[0], start]):
        list(client_matrix.logits_of(engine, tests, enumerate(models), 10, federation))
    first, second, *rest = [request.body for request in said]
    assert first == second == rest[2] != "" and rest[:2] == ["", ""]
    assert rest[3] not in ("", first) and rest[4] == ""
    assert all(request.many and torch.equal(request.rows, tests.rows) for request in said)


def test_heads_of_clients_are_in_the_record_every_round(tmp_path):
    result, record = run(tmp_path, "method=fedper", "evaluate.matrix=2", "training.lr=0.1")
    (log,) = tmp_path.glob("*/*/*/rounds.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert ["id_accuracy" in row for row in rows] == [False, True, False]
    diagonal = record["correct"].diagonal().sum() / record["examples"].diagonal().sum()
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx(float(diagonal))
    assert len({tuple(row) for row in record["correct"].tolist()}) > 1  # models differ


def test_fine_tuning_and_soup_share_rounds_and_agree_at_the_ends(tmp_path, capsys):
    tuned, record = run(tmp_path, "method=finetune", *PERSONAL, "training.lr=0.1")
    assert "have been trained before" not in capsys.readouterr().err
    mixed, soups = run(tmp_path, "method=soup", *PERSONAL, ALPHAS, "training.lr=0.1")
    assert "the rounds have been trained before, and are shared" in capsys.readouterr().err
    assert mixed["artefact"] == tuned["artefact"]
    for name in ("correct", "loss", "valid"):
        assert torch.equal(soups[name][0], record[name][0]) and torch.equal(soups[name][2], record[name][2])
    assert torch.equal(record["correct"][0], record["start"])  # theta_0
    assert not torch.equal(record["correct"][2], record["start"])
    facts = tuned["personalisation"]
    assert [point["epochs"] for point in facts["points"]] == [0, 2, 4] and facts["chosen"] == 2
    assert tuned["metrics"]["id_accuracy"]["ALL"] == facts["points"][2]["id_accuracy"]
    assert facts["points"][0]["id_accuracy"] == facts["start"]["id_accuracy"]
    setup = setup_of("method=finetune", *PERSONAL)
    batches = [-(-len(rows) // 8) for rows in setup.federation.rows("train")]
    assert [point["sgd_steps"] for point in facts["points"]] == pytest.approx(
        [epochs * sum(batches) / len(batches) for epochs in (0, 2, 4)]
    )


def test_predictions_are_those_of_the_deployed_models(tmp_path):
    result, record = run(tmp_path, "method=soup", *PERSONAL, ALPHAS, "training.lr=0.1")
    (folder,) = (path.parent for path in tmp_path.glob("*/*/*/result.json"))
    arrays = load_file(folder / "predictions.safetensors")
    predicted, labels = arrays["test.probabilities"].argmax(1), arrays["test.labels"]
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx(accuracy_score(labels, predicted))
    assert result["metrics"]["f1"]["ALL"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    facts = result["personalisation"]
    scores = [point["valid_accuracy"] for point in facts["points"]]
    assert facts["chosen"] == int(np.argmax(scores)) and len(set(scores)) > 1
    chosen = record["correct"][facts["chosen"]]
    assert int((predicted == labels).sum()) == int(chosen.diagonal().sum())


def test_held_out_examples_and_unseen_clients_train_nothing():
    plain = setup_of("method=fedavg")
    setup = setup_of("method=fedavg", "partition.valid=0.25", "partition.unseen=0.4")
    federation = setup.federation
    assert len(federation.unseen) == 2 and set(federation.unseen).isdisjoint(federation.numbers)
    assert len(federation) == 4 and all(set(federation.drawn(r)).isdisjoint(federation.unseen) for r in range(20))
    for whole, own in zip(plain.federation.clients, federation.clients, strict=True):
        train, valid = own.train, own.valid
        assert sorted([*train.tolist(), *valid.tolist()]) == whole.train.tolist()
        assert len(valid) == max(round(0.25 * whole.size), 1)
    dealt = [hold_out_valid(plain.partition, 0.25, seed).valid for seed in (0, 0, 1)]
    rows = [[own.tolist() for own in valid] for valid in dealt]
    assert rows[0] == rows[1] != rows[2]


def test_unseen_clients_are_measured_apart(tmp_path):
    result, record = run(tmp_path, "method=fedavg", "evaluate.matrix=end", "partition.unseen=0.4", "training.lr=0.1")
    setup = setup_of("method=fedavg", "partition.unseen=0.4")
    sizes, diagonal = record["examples"].diagonal(), record["correct"].diagonal()
    share = {k: float(diagonal[k]) / int(sizes[k]) for k in range(6) if sizes[k]}
    unseen = [share[k] for k in setup.federation.unseen if k in share]
    assert result["unseen"] == 2 and result["clients"] == 4
    assert result["metrics"]["unseen_accuracy"]["ALL"] == pytest.approx(np.mean(unseen))
    (log,) = tmp_path.glob("*/*/*/rounds.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["unseen_accuracy"] == pytest.approx(np.mean(unseen))
    seen = list(setup.federation.numbers)
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx(float(diagonal[seen].sum() / sizes[seen].sum()))


@pytest.mark.thorough
def test_kill_9_between_saves_and_the_same_command_again(tmp_path):
    longer = ["method=soup", "method.personalisation.epochs=60", "method.personalisation.saves=60", "training.lr=0.1"]
    arguments = [*replaced(TINY_IMAGES, *longer), ALPHAS.replace("[0,", "[0.1,0.2,0,"), "method.personalisation.at=all"]
    until = functools.partial(there, tmp_path / "killed", "femnist/soup/*/personalisation/commit.json")
    killed = Forked(*arguments, f"paths.out={tmp_path / 'killed'}", until=until)
    assert killed.wait() == -signal.SIGKILL, killed.said
    assert not list((tmp_path / "killed").glob("*/*/*/result.json"))
    records = []
    for name in ("killed", "alone"):
        assert main([*arguments, f"paths.out={tmp_path / name}"]) == 0
        (folder,) = (path.parent for path in (tmp_path / name).glob("*/*/*/result.json"))
        result = json.loads((folder / "result.json").read_text())
        del result["seconds"], result["digest"]
        arrays = [(folder / file).read_bytes() for file in ("clients.safetensors", "predictions.safetensors")]
        records.append((result, arrays))
        assert not (folder / "personalisation").exists()
    assert records[0] == records[1]


@pytest.mark.parametrize("method", ["scaffold", "fedrep", "clustered_fedavg", "fedavg_chill", "feddistill"])
def test_soup_after_any_method(tmp_path, method):
    extra = ["method.head_epochs=1"] if method == "fedrep" else []
    extra += ["method.clustering.clusters=2"] if method.startswith("clustered") else []
    spec = "method.personalisation={kind: soup, lr: 0.05, epochs: 1, saves: 1, alphas: [0, 0.5, 1]}"
    result, record = run(tmp_path, f"method={method}", *extra, spec, "partition.transfer=0.1")
    assert record["correct"].shape == (3, 6, 6) and len(result["personalisation"]["points"]) == 3


@pytest.mark.thorough
def test_soup_of_texts(tmp_path):
    spec = ["method=soup", "method.personalisation.epochs=1", "method.personalisation.saves=1", ALPHAS]
    assert main([*TINY_TEXTS, *spec, f"paths.out={tmp_path}"]) == 0
    (found,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(found.read_text())
    assert result["metrics"]["sd"]["ALL"] > 0 and len(result["personalisation"]["points"]) == 3


def test_running_statistics_of_a_soup_are_estimated_anew(tmp_path):
    """Between two models the mean of their statistics is wrong: one pass over the training images mends it."""
    small = ["task=cifar10", "task.limit=60", "task.shape=[3,8,8]", "partition=iid", "partition.clients=2"]
    small += ["model=resnet8", "training.rounds=1", "training.participants=2", "training.epochs=1", "training.batch=8"]
    small += ["hardware.workers=1", "method=soup", "method.personalisation.epochs=1", "method.personalisation.saves=1"]
    seen, passes = [], []
    estimate = personalised._Work._estimated

    def spied(self, number, models):
        train = self.engine.train

        def kept(requests):
            passes.extend(zip(requests, train(requests), strict=True))
            return [found for _, found in passes]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine, "train", kept)
            after = estimate(self, number, models)
        seen.append((self.points[number].alpha, models, after))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personalised._Work, "_estimated", spied)
        assert main([*small, ALPHAS, f"paths.out={tmp_path}"]) == 0
    ((alpha, models, after),) = seen
    assert alpha == 0.5 and len(passes) == 2
    for request, found in passes:  # the weights stand still, batch after batch
        assert found.steps > 1 and torch.equal(found.weights, request.start.weights)
    for (client, model), (same, other) in zip(models, after, strict=True):
        assert client == same and torch.equal(model.weights, other.weights)
        assert not torch.equal(model.buffers, other.buffers)
