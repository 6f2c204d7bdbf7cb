"""Clients with architectures of their own: FedMD against what is typed out by hand, dealing, records, refusals."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from knot_runner.cli.main import main
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import PerNetwork
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.feddistill import others_means
from knot_runner.methods.federation import ServerExamples
from knot_runner.methods.party import Architecture
from knot_runner.models.network import Network
from knot_runner.pipelines import scores
from knot_runner.pipelines.clients import FederatedContext
from tests.contents import problem_of
from tests.feddf_runs import TRANSFER, close, distill, run
from tests.tiny import TINY_IMAGES, replaced
from tests.unit.methods.federated.plain import examples, hidden_outputs, linear_logits
from tests.unit.methods.federated.worlds import CLASSES, SHAPE, World, make_world, rounds_of, settings, with_rows


def two_architectures():
    """A linear model, and one of a hidden layer: (the federation that has them in turn, its engine, its examples)."""
    world = make_world([]).with_training(clients_per_round=4)
    network = Network(MlpSettings("mlp", "deep", [5], "logits"), SHAPE, CLASSES)
    weights, buffers = flat.initial(network, 1)
    other = Architecture(network, flat.layout_of(network), ClientModel(weights.double(), buffers.double()))
    data = world.engine.data
    federation = dataclasses.replace(world.federation, server=ServerExamples(torch.arange(0), TRANSFER, TRANSFER[:0]))
    federation = dataclasses.replace(federation, architectures=(*federation.architectures, other))
    return federation, PerNetwork([world.engine, Loop(network, data, data, torch.device("cpu"), torch.float64)]), data


def played(algorithm, rounds, federation, engine, **changes):
    """(states after each round, what was asked and trained in each, method, its settings)."""
    config = settings(algorithm, **changes)
    actual = rounds_of(World(federation, engine), config, rounds)
    return [one.after for one in actual], [(one.requests, one.trained) for one in actual], METHODS[algorithm], config


def logits_by_hand(weights, client, inputs):
    """Of the client's model, [n, C]: odd clients have a hidden layer."""
    return linear_logits(weights, inputs) if client % 2 == 0 else hidden_outputs(weights, inputs)[1]


def test_fedmd_clients_fit_mean_logits_across_architectures():
    federation, engine, data = two_architectures()
    spec = distill(ensemble="logits", optimizer="sgd", lr=0.5)
    states, seen, method, config = played("fedmd", 2, federation, engine, server_distillation=spec)
    public = data.pixels[TRANSFER].flatten(1)
    requests, trained = seen[1]
    assert {request.client % 2 for request in requests} == {0, 1}
    q = torch.softmax(torch.stack([logits_by_hand(t.weights, t.client, public) for t in trained]).mean(0), -1)
    for request, result in zip(requests, trained, strict=True):
        client = request.client
        assert request.network == client % 2 and len(request.start.weights) == (15 if client % 2 == 0 else 43)
        assert torch.equal(request.start.weights, method.deployed(config, states[0], federation, client).weights)
        weights, draws = result.weights.clone().requires_grad_(), generator(3, "local", 1, client)
        for _ in range(2):
            for at in torch.randperm(32, generator=draws).split(5):
                log = torch.log_softmax(logits_by_hand(weights, client, public[at]), -1)
                (gradient,) = torch.autograd.grad(F.kl_div(log, q[at], reduction="batchmean"), weights)
                weights = (weights - 0.5 * gradient).detach().requires_grad_()
        after = states[1][f"client/{client}/weights"]
        close(after, weights.detach())
        assert torch.equal(method.deployed(config, states[1], federation, client).weights, after)
    setup = SimpleNamespace(federation=federation, test=data)
    run = FederatedContext(SimpleNamespace(method=config), setup, method, engine)
    actual = scores.predict_test(run, states[1])
    models = [method.deployed(config, states[1], federation, client).weights for client in range(5)]
    hits = [logits_by_hand(own, client, data.pixels[rows].flatten(1)).argmax(1) == data.labels[rows]
            for client, (own, rows) in enumerate(zip(models, federation.rows("test"), strict=True))]  # fmt: skip
    assert actual.clients == [float(hit.double().mean()) for hit in hits]


def test_federation_deals_architectures_by_client_number():
    federation, _, _ = two_architectures()
    first, second = federation.architectures
    third = dataclasses.replace(federation, architectures=(first, second, second))
    assert [third.network_number(client) for client in range(5)] == [0, 1, 2, 0, 1]
    assert [third.cluster([1, 3, 4]).network_number(client) for client in (1, 3, 4)] == [1, 0, 1]
    assert federation.start_of(3) is second.start and federation.start_of(2) is federation.model
    assert federation.layout_of(3).size == 43 and federation.layout_of(4).size == 15
    alone = dataclasses.replace(federation, architectures=(first,))
    assert {alone.network_number(client) for client in range(5)} == {0} and alone.start_of(3) is federation.model


def test_feddistill_collects_label_logits_across_architectures():
    federation, engine, data = two_architectures()
    states, seen, _, _ = played("feddistill", 1, federation, engine)
    for result in seen[0][1]:
        rows = federation.clients[result.client].train
        own = logits_by_hand(result.weights, result.client, data.pixels[rows].flatten(1))
        for label in data.labels[rows].unique():
            wanted = own[data.labels[rows] == label].mean(0)
            close(states[0][f"label_logits/{result.client}"][label], wanted, 1e-12)


def test_alone_is_one_long_training_in_pieces():
    federation, engine, _ = two_architectures()
    states, seen, _, _ = played("local", 3, federation, engine)
    client = seen[0][0][0].client
    others = [rows if number == client else rows[:4] for number, rows in enumerate(federation.rows("train"))]
    again, _, _, _ = played("local", 3, with_rows(federation, train=others), engine)
    assert torch.equal(again[2][f"client/{client}/weights"], states[2][f"client/{client}/weights"])
    assert set(states[2]) == {f"client/{c.client}/{kind}" for _, trained in seen for c in trained
                              for kind in ("weights", "buffers")}  # fmt: skip


THREE = (
    "method.models=[cnn_4,{kind:mlp,name:wide,hidden:[16],output:logits},{kind:mlp,name:flat,hidden:[],output:logits}]"
)
FEDMD = replaced(TINY_IMAGES, "method=fedmd", THREE, "method.server_distillation.batch_size=16", "training.lr=0.1")


def test_fedmd_records_accuracy_by_architecture(tmp_path, capsys):
    result, rows, weights = run(tmp_path, *FEDMD)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "accuracy by architecture: cnn_4 (2 clients) 0." in said and "cnn_4, wide, flat, up to 1,674 parameters" in said
    )
    assert not problem_of(result) and result["model"] == "cnn_4, wide, flat"
    shapes = {name.split("/")[2] for name in weights if name.startswith("client/1/")}
    assert shapes == {"layers.0.weight", "layers.0.bias", "head.weight", "head.bias"}
    config = next(tmp_path.glob("*/*/*/config.yaml")).parent
    sizes = json.loads((config / "partition.json").read_text())["test"]
    for number, (name, parameters) in enumerate([("cnn_4", 1674), ("wide", 1210), ("flat", 650)]):
        own, told = result["models"][name], rows[-1]["clients"][number::3]
        right = sum(value * size for value, size in zip(told, sizes[number::3], strict=True) if size)
        assert own["clients"] == 2 and own["accuracy"] == pytest.approx(right / sum(sizes[number::3]))
        assert own["unweighted"] == pytest.approx(sum(told) / 2) and own["parameters"] == parameters


def test_models_setting_refuses_single_model_plugin_method(tmp_path, capsys):
    plugin = tmp_path / "averages.py"
    plugin.write_text(
        "from knot_runner.methods.contract import METHODS\n"
        "from knot_runner.methods import federated\n"
        "METHODS['own_average'] = METHODS['fedavg']\n"
    )
    words = ["method=fedavg", "method.algorithm=own_average", "+method.models=[cnn_4,cnn_8]", f"plugins=['{plugin}']"]
    assert main([*TINY_IMAGES, *words, f"paths.output_dir={tmp_path / 'out'}"]) == 2
    assert "method.models: not a setting of method.algorithm=own_average" in capsys.readouterr().err


def means_by_hand(federation, data, state, client):
    """Label -> mean over the others of their mean logits for it, of linear models."""
    means = {}
    for label in range(CLASSES):
        sent = []
        for other in range(5):
            rows = federation.clients[other].train
            rows = rows[data.labels[rows] == label]
            if other != client and f"client/{other}/weights" in state and len(rows):
                sent.append(linear_logits(state[f"client/{other}/weights"], data.pixels[rows].flatten(1)).mean(0))
        if sent:
            means[label] = torch.stack(sent).mean(0)
    return means


def test_feddistill_loss_adds_others_mean_label_logits():
    world = make_world([])
    states, seen, _, _ = played("feddistill", 2, world.federation, world.engine)
    for request, result in zip(*seen[1], strict=True):
        means = means_by_hand(world.federation, world.engine.data, states[0], request.client)
        x, labels = examples(world, request)
        told = torch.stack([means[int(label)] for label in labels])
        weights = request.start.weights.clone().requires_grad_()
        draws = generator(3, "local", 1, request.client)
        for _ in range(2):
            for at in torch.randperm(len(labels), generator=draws).split(4):
                z = linear_logits(weights, x[at])
                soft = -(torch.softmax(told[at] / 2.0, 1) * torch.log_softmax(z / 2.0, 1)).sum(1)
                loss = (F.cross_entropy(z, labels[at], reduction="none") + 0.7 * soft).mean()
                (gradient,) = torch.autograd.grad(loss, weights)
                weights = (weights - 0.1 * gradient).detach().requires_grad_()
        close(result.weights, weights.detach(), atol=1e-12)
        assert torch.equal(states[1][f"client/{request.client}/weights"], result.weights)


def test_others_means_ignores_labels_nobody_else_has():
    federation = make_world([]).federation
    (state,), ((requests, _),), _, _ = played("feddistill", 1, federation, make_world([]).engine)
    (one, two, three) = [request.client for request in requests]
    for other in (two, three):
        state[f"label_counts/{other}"] = torch.tensor([0, 3, 3]) if other == two else torch.tensor([0, 0, 5])
    logits, known = others_means(state, federation, one)
    assert known.tolist() == [False, True, True]
    close(logits[1], state[f"label_logits/{two}"][1], 0)
    close(logits[2], (state[f"label_logits/{two}"][2] + state[f"label_logits/{three}"][2]) / 2, 1e-15)
    assert others_means({}, federation, one) is None
    assert others_means(state, federation.cluster([one]), one) is None
