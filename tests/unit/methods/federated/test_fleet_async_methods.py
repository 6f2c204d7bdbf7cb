"""SCAFFOLD, FedGen, FD, FedMD, FedDF and local training without rounds: steps typed out, and their rounds."""

import pytest
import torch
import torch.nn.functional as F

from knot_runner.config.settings.methods.federated import ServerSettings
from knot_runner.engine.seeds import generator
from knot_runner.methods.around.fleet.asynchronous import as_begun, version_entries
from knot_runner.methods.federated import fedgen
from knot_runner.methods.federated.fedgen import Head
from tests.feddf_runs import distill
from tests.oracles.methods.test_fedgen import by_hand
from tests.unit.methods.federated.fleets import WHOLE, Played, buffered, fleet_of
from tests.unit.methods.federated.plain import examples, gradient
from tests.unit.methods.federated.worlds import CLASSES, SIZES

#: Client and version of each server step, where clients take 1, 2.6 and 10 s and every update makes a step.
BEGUN = [(0, 0), (0, 1), (1, 0), (0, 2), (0, 4), (0, 5), (1, 3), (0, 6)]
CONSENSUS = {"server_distillation": distill(ensemble="logits", optimizer="sgd", lr=0.5)}
#: name -> (algorithm, settings, hidden layers)
CASES = {
    "scaffold": ("scaffold", {}, ()),
    "fedgen": ("fedgen", {}, (5,)),
    "feddistill": ("feddistill", {}, ()),
    "fedmd": ("fedmd", CONSENSUS, ()),
    "local": ("local", {}, ()),
    "feddf": ("fedavg", CONSENSUS, ()),
    "feddf of scaffold": ("scaffold", {**CONSENSUS, "aggregation": "uniform"}, ()),
    "feddf of fedgen": ("fedgen", CONSENSUS, (5,)),
    "feddf of ditto": ("ditto", CONSENSUS, ()),
    "fedadam": ("fedavg", {"server": ServerSettings("adam", 0.1, 0.9, 0.99, 1e-3)}, (5,)),
    "own statistics": ("fedavg", {"aggregation": "uniform", "batchnorm": "local"}, (5,)),
    **{name: (name, {}, (5,)) for name in ("fedavg", "fedprox", "fedper", "fedrep", "ditto", "apfl", "fedala")},
}


@pytest.fixture
def spread(paced):
    """The clients of :data:`BEGUN`; the last two are of 3.3 and 4.7 s."""
    paced(1 / 16, 2.6 / 24, 10 / 32, 3.3 / 40, 4.7 / 48)


def stepwise(algorithm, **changes):
    played = Played(buffered(), algorithm, **{"rounds": len(BEGUN), **changes})
    begun = [[(request.client, request.round) for request in requests] for requests, _ in played.seen]
    assert begun == [[one] for one in BEGUN]
    assert played.column("staleness") == [place - version for place, (_, version) in enumerate(BEGUN)]
    return played


# of three of five some begin FedALA's mixing before others, which takes time
@pytest.mark.parametrize(
    ("case", "participants"), [(case, n) for case in CASES for n in (5, 3) if (case, n) != ("fedala", 3)]
)
def test_async_full_buffer_equals_rounds_at_equal_speeds(case, participants, paced):
    paced(*(1 / size for size in SIZES))
    algorithm, changes, hidden = CASES[case]
    own = {"members": range(5), "hidden": hidden, "changes": changes, "clients_per_round": participants}
    sync, played = Played(None, algorithm, **own), Played(buffered(participants), algorithm, **own)
    assert played.column("participants") == sync.column("participants") and played.column("staleness") == [0.0] * 4
    waited = Played(fleet_of(), algorithm, **own)
    assert played.column("clock") == pytest.approx(waited.column("clock"), rel=1e-12)
    assert all(torch.equal(played.state[name], tensor) for name, tensor in sync.state.items())
    assert all(own.items() <= row.items() for own, row in zip(sync.rows, played.rows, strict=True))


@pytest.mark.parametrize("exponent", [0.5, 0.0])
def test_async_scaffold_corrects_by_starting_control(exponent, spread):
    """A stale update moves the model by a share, the controls by all of it."""
    played = Played(buffered(staleness_exponent=exponent), "scaffold", rounds=len(BEGUN), **WHOLE)
    versions, control = [played.federation.model.weights], [torch.zeros(15, dtype=torch.float64)]
    own = {client: torch.zeros(15, dtype=torch.float64) for client in range(3)}
    for place, (client, version) in enumerate(BEGUN):
        ((request,), _), state = played.seen[place], played.states[place]
        assert (request.client, request.round) == (client, version)
        weights = versions[version]
        x, y = examples(played.world, request)
        for _ in range(2):
            weights = weights - 0.1 * (gradient(weights, x, y) + control[version] - own[client])
        change = (versions[version] - weights) / (2 * 0.1) - control[version]
        own[client] = own[client] + change
        control.append(control[-1] + change / 3)
        versions.append(versions[-1] + (1 + place - version) ** -exponent * (weights - versions[version]))
        torch.testing.assert_close(state["weights"], versions[-1], rtol=0, atol=1e-13)
        torch.testing.assert_close(state["control"], control[-1], rtol=0, atol=1e-12)
        torch.testing.assert_close(state[f"client/{client}/control"], own[client], rtol=0, atol=1e-12)


def mean_logits_by_hand(played, weights, client):
    """Label -> mean logits of the model ``weights`` for the client's examples of it."""
    data, rows = played.world.engine.data, played.federation.clients[client].train
    logits = data.pixels[rows].flatten(1) @ weights[:12].view(CLASSES, 4).T + weights[12:]
    found = {label: logits[data.labels[rows] == label] for label in range(CLASSES)}
    return {label: own.mean(0) for label, own in found.items() if len(own)}


def test_async_feddistill_uses_means_sent_before_start(spread):
    played = stepwise("feddistill", **WHOLE)
    sent, models = [{}], dict.fromkeys(range(3), played.federation.model.weights)
    for place, (client, version) in enumerate(BEGUN):
        ((request,), (result,)), state = played.seen[place], played.states[place]
        x, y = examples(played.world, request)
        others = [means for other, means in sent[version].items() if other != client]
        weights = models[client].clone().requires_grad_()
        for _ in range(2):
            z = x @ weights[:12].view(CLASSES, 4).T + weights[12:]
            loss = F.cross_entropy(z, y)
            for row, label in enumerate(y.tolist()):
                known = [means[label] for means in others if label in means]
                if known:
                    told = torch.softmax(torch.stack(known).mean(0) / 2.0, 0)
                    loss = loss - 0.7 * (told * torch.log_softmax(z[row] / 2.0, 0)).sum() / len(y)
            (slope,) = torch.autograd.grad(loss, weights)
            weights = (weights - 0.1 * slope).detach().requires_grad_()
        models[client] = weights.detach()
        torch.testing.assert_close(state[f"client/{client}/weights"], models[client], rtol=0, atol=1e-12)
        assert torch.equal(state[f"client/{client}/weights"], result.weights)
        means = mean_logits_by_hand(played, models[client], client)
        sent.append({**sent[-1], client: means})
        for label, logits in means.items():
            torch.testing.assert_close(state[f"label_logits/{client}"][label], logits, rtol=0, atol=1e-12)
    assert ["known" in request.inputs for (request,), _ in played.seen] == [False] * 4 + [True] * 4
    told = (CLASSES * CLASSES) * 8 + CLASSES  # means, and a flag for each
    assert played.column("bytes_down") == [0] * 4 + [told] * 4


def test_async_fedgen_trains_clients_on_sent_generator(spread):
    """It learns from the heads as they are averaged, moved to the server's model, with the counts of their clients."""
    played = stepwise("fedgen", hidden=(5,))
    labels, start = played.federation.train_labels, played.method.init(played.config, played.federation)
    versions = [start, *played.states]
    counts = [torch.bincount(labels[one.train], minlength=CLASSES) for one in played.federation.clients]
    for place, (client, version) in enumerate(BEGUN):
        ((request,), (result,)), then, before = played.seen[place], versions[version], versions[place]
        assert torch.equal(request.start.weights, then["weights"]) and bool(request.inputs) == (version > 0)
        if version:
            draws, n = generator(3, "features", version, client), len(request.rows)
            last = counts[BEGUN[version - 1][0]]
            drawn = torch.multinomial(last.double(), n, replacement=True, generator=draws)
            assert torch.equal(request.inputs["drawn"], drawn)
            for name, wanted in (("drawn_features", drawn), ("own_features", labels[request.rows])):
                noise = torch.rand(n, 3, generator=draws, dtype=torch.float64)
                made = by_hand(then, noise, wanted, False)
                torch.testing.assert_close(request.inputs[name], made, rtol=0, atol=1e-12)
            assert request.objective.settings["alpha"] == 2.0 * 0.5**version
        moved = before["weights"] + (1 + place - version) ** -0.5 * (result.weights - then["weights"])
        torch.testing.assert_close(played.states[place]["weights"], moved, rtol=0, atol=1e-13)
        head = Head(moved[25:40].view(CLASSES, 5), moved[40:], counts[client])
        model = fedgen.new_generator(played.config.generator, CLASSES, 5, 3, torch.float64)
        fedgen.load_generator(model, before)
        made, _ = fedgen.train_generator(played.config.generator, model, before, [head], 3, place)
        for name, tensor in (made | {"generator/labels": counts[client]}).items():
            torch.testing.assert_close(played.states[place][name], tensor, rtol=0, atol=1e-9)


def test_async_feddf_distills_from_buffered_clients(spread):
    """Its teachers are their models as they arrived, its student is the averaged one, and that is what clients get."""
    played = Played(buffered(2), members=range(5), clients_per_round=4, changes=CONSENSUS, rounds=8)
    assert max(played.column("staleness")) > 1
    versions = [played.federation.model.weights, *(state["weights"] for state in played.states)]
    for place, (requests, trained) in enumerate(played.seen):
        inferences, (training,) = played.after[place].inferences, played.after[place].distillation
        assert [id(one.model.weights) for one in inferences] == [id(result.weights) for result in trained]
        x = played.world.engine.data.pixels[torch.arange(30, 62)].flatten(1)
        told = [x @ one.weights[:12].view(CLASSES, 4).T + one.weights[12:] for one in trained]
        (found,) = training.inputs.values()
        torch.testing.assert_close(found, torch.stack(told).mean(0), rtol=0, atol=1e-12)
        stepped, sizes = versions[place], [len(request.rows) for request in requests]
        for request, result, size in zip(requests, trained, sizes, strict=True):
            assert torch.equal(request.start.weights, versions[request.round])  # distilled, too
            discount = (1 + place - request.round) ** -0.5
            stepped = stepped + size / sum(sizes) * discount * (result.weights - request.start.weights)
        torch.testing.assert_close(training.start.weights, stepped, rtol=0, atol=1e-13)
        assert not torch.equal(versions[place + 1], training.start.weights)
        flying = {version for _, version in played.states[place]["fleet/in_flight"].tolist()}
        for version in flying:
            assert torch.equal(played.states[place][f"fleet/sent/{version}/weights"], versions[version])


def test_async_fedmd_averages_logits_of_buffered_clients(spread):
    """They keep their models: each goes on with what it was after its last consensus, however many steps ago."""
    played = Played(buffered(2), "fedmd", members=range(5), clients_per_round=4, changes=CONSENSUS, rounds=8)
    assert max(played.column("staleness")) > 1
    models = dict.fromkeys(range(5), played.federation.model.weights)
    for place, (requests, trained) in enumerate(played.seen):
        clients = [request.client for request in requests]
        assert len(clients) == 2 and all(torch.equal(one.start.weights, models[one.client]) for one in requests)
        inferences, distilled = played.after[place].inferences, played.after[place].distillation
        assert [id(one.model.weights) for one in inferences] == [id(result.weights) for result in trained]
        assert [one.client for one in distilled] == clients
        x = played.world.engine.data.pixels[torch.arange(30, 62)].flatten(1)
        logits = [x @ one.weights[:12].view(CLASSES, 4).T + one.weights[12:] for one in trained]
        for one, result in zip(distilled, trained, strict=True):
            assert torch.equal(one.start.weights, result.weights)
            (told,) = one.inputs.values()
            torch.testing.assert_close(told, torch.stack(logits).mean(0), rtol=0, atol=1e-12)
        models |= {client: played.states[place][f"client/{client}/weights"] for client in clients}
        assert all(not torch.equal(models[one.client], one.start.weights) for one in distilled)
    assert not any(name.startswith("fleet/sent/") for state in played.states for name in state)


@pytest.mark.parametrize("algorithm", ["local", "fedmd"])
def test_async_fleet_takes_no_time_to_send_own_models(algorithm, spread):
    changes = CONSENSUS if algorithm == "fedmd" else {}
    network = {"down": 1e-6, "up": 1e-6, "sigma": 0.0}
    played = Played(buffered(network=network), algorithm, changes=changes)
    assert played.column("clock") == pytest.approx([1.0, 2.0, 2.6, 3.0], rel=1e-12)
    assert played.column("staleness") == [0, 0, 2, 1]
    for (_, (result,)), state in zip(played.seen, played.states, strict=True):
        kept_as_trained = torch.equal(state[f"client/{result.client}/weights"], result.weights)
        assert kept_as_trained == (algorithm == "local")
    plain = Played(buffered(network=network))
    assert plain.rows[0]["clock"] == pytest.approx(1.0 + 2 * 15 * 32, rel=1e-12)


def test_version_entries_hold_all_but_what_clients_and_server_keep():
    old, new = torch.zeros(1), torch.ones(1)
    names = ("client/1/weights", "server/first", "fleet/clock", "fleet/sent/1/weights")
    kept = version_entries({"weights": old, "shared/a": old, **dict.fromkeys(names, old)}, 2, 2)
    assert kept.keys() == {"fleet/sent/2/weights", "fleet/sent/2/shared/a"}
    assert all(tensor is not old for tensor in kept.values())  # a commit holds no tensor under two names
    now = {**kept, "weights": new, "shared/b": new, "fleet/sent/22/weights": new, **dict.fromkeys(names, new)}
    found = as_begun(now, 2, 4)
    assert found["weights"] is kept["fleet/sent/2/weights"] and found["shared/a"] is kept["fleet/sent/2/shared/a"]
    assert "shared/b" not in found and all(found[name] is new for name in names)
    assert as_begun(now, 4, 4) is now and version_entries(now, 2, 4) == kept
