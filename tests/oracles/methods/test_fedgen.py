"""FedGen: the generator's loss and its training, and what a client minimizes, against what is typed out by hand."""

import dataclasses

import pytest
import torch

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.seeds import generator
from knot_runner.methods.around.clusters import cluster_state, per_cluster
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated import fedgen
from knot_runner.methods.federated.fedgen import Head, heads_loss
from tests.feddf_runs import close, run
from tests.golden.messages import refuses
from tests.tiny import TINY_TEXTS
from tests.unit.methods.federated.worlds import CLASSES, World, make_world, method_of, rounds_of, settings, spec_of

HIDDEN = 5


class Rounds:
    """Some rounds of FedGen with a model of one hidden layer; ``states``: after each, ``seen``: (requests, trained)."""

    def __init__(self, rounds, members=None, **changes):
        self.world = make_world([HIDDEN])
        self.data = self.world.engine.data
        federation = self.world.federation
        self.federation = federation if members is None else federation.cluster(members)
        self.config, self.method = settings("fedgen", **changes), METHODS["fedgen"]
        actual = rounds_of(World(self.federation, self.world.engine), self.config, rounds)
        self.start, self.states, self.rows = (
            actual[0].before,
            [one.after for one in actual],
            [one.row for one in actual],
        )
        self.seen = [(one.requests, one.trained) for one in actual]

    def parts(self, weights):
        first, bias, last, end = weights.split([HIDDEN * 4, HIDDEN, CLASSES * HIDDEN, CLASSES])
        return first.view(HIDDEN, 4), bias, last.view(CLASSES, HIDDEN), end


def by_hand(state, noise, labels, training):
    """The generator of ``state`` typed out: features [B, H] of noise [B, E] and labels [B]."""
    own = {name.removeprefix("generator/model."): tensor for name, tensor in state.items()}
    x = torch.cat([noise, torch.eye(CLASSES, dtype=noise.dtype)[labels]], 1) @ own["0.weight"].T + own["0.bias"]
    mean, var = (x.mean(0), x.var(0, unbiased=False)) if training else (own["1.running_mean"], own["1.running_var"])
    x = (x - mean) / (var + 1e-5).sqrt() * own["1.weight"] + own["1.bias"]
    return x.clamp_min(0) @ own["3.weight"].T + own["3.bias"]


def test_heads_loss_weighs_label_shares_and_adds_diversity():
    draws = torch.Generator().manual_seed(1)
    z, e = (torch.randn(6, size, generator=draws, dtype=torch.float64) for size in (4, 2))
    y = torch.tensor([0, 1, 2, 1, 0, 2])
    heads = [Head(torch.randn(3, 4, generator=draws, dtype=torch.float64), torch.randn(3, generator=draws).double(),
                  torch.tensor(counts)) for counts in ([4, 0, 1], [1, 0, 3])]  # fmt: skip
    share = {0: (4 / 5, 1 / 5), 1: (0.0, 0.0), 2: (1 / 4, 3 / 4)}
    total = 0.0
    for i in range(6):
        for k, head in enumerate(heads):
            logits = head.weight @ z[i] + head.bias
            total += share[int(y[i])][k] * -(logits[y[i]] - torch.logsumexp(logits, 0)) / 6
    apart = sum(((e[i] - e[j]) ** 2).mean() * (z[i] - z[j]).abs().mean() for i in range(6) for j in range(6)) / 36
    actual = heads_loss(z, e, y, heads, 0.6)
    assert float(actual) == pytest.approx(float(total + 0.6 * torch.exp(-apart)), abs=1e-12)


def test_fedgen_generator_continues_adam_from_its_state():
    played = Rounds(2)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    own = {f"generator/model.{name}": played.start[f"generator/model.{name}"].clone() for name in names}
    first, second = ([torch.zeros_like(tensor) for tensor in own.values()] for _ in range(2))
    for round in range(2):
        heads = []
        for result in played.seen[round][1]:
            _, _, weight, bias = played.parts(result.weights)
            labels = played.data.labels[played.federation.clients[result.client].train]
            heads.append(Head(weight, bias, torch.tensor([int((labels == c).sum()) for c in range(CLASSES)])))
        counts, losses = sum(head.counts for head in heads), []
        assert torch.equal(played.states[round]["generator/labels"], counts)
        for step in range(4):
            draws = generator(3, "generator", round, step)
            y = torch.multinomial(counts.double(), 9, replacement=True, generator=draws)
            e = torch.rand(9, 3, generator=draws, dtype=torch.float64)
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in own.items()}
            loss = heads_loss(by_hand(leaves, e, y, True), e, y, heads, 0.6)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            losses.append(float(loss.detach()))
            for i, (name, gradient) in enumerate(zip(own, gradients, strict=True)):
                gradient, taken = gradient + 0.1 * own[name], round * 4 + step + 1
                first[i] = 0.9 * first[i] + 0.1 * gradient
                second[i] = 0.999 * second[i] + 0.001 * gradient**2
                move = first[i] / (1 - 0.9**taken) / ((second[i] / (1 - 0.999**taken)).sqrt() + 1e-8)
                own[name] = own[name] - 0.01 * move
        for name in own:
            close(played.states[round][name], own[name], 1e-8)
        assert played.rows[round]["generator_loss"] == pytest.approx(sum(losses) / 4, abs=1e-8)


@pytest.mark.parametrize("chilled", [1.0, 0.5])
def test_fedgen_clients_add_losses_on_generated_features(chilled):
    """From the second round on; the first is FedAvg's."""
    played = Rounds(3, temperature=chilled)
    plain = METHODS["fedavg"].plan(settings("fedavg", temperature=chilled), played.start, played.federation, 0)
    assert all(torch.equal(a.start.weights, b.start.weights) and a.objective == b.objective and not a.inputs
               for a, b in zip(played.seen[0][0], plain, strict=True))  # fmt: skip
    state, counts = played.states[1], played.states[1]["generator/labels"]
    for request, result in zip(*played.seen[2], strict=True):
        rows, n = request.rows, len(request.rows)
        draws = generator(3, "features", 2, request.client)
        drawn = torch.multinomial(counts.double(), n, replacement=True, generator=draws)
        noise = [torch.rand(n, 3, generator=draws, dtype=torch.float64) for _ in range(2)]
        labels = played.data.labels[rows]
        other, same = by_hand(state, noise[0], drawn, False), by_hand(state, noise[1], labels, False)
        weights = state["weights"].clone().requires_grad_()
        order = generator(3, "local", 2, request.client)
        for _ in range(2):
            for at in torch.randperm(n, generator=order).split(4):
                first, bias, last, end = played.parts(weights)
                x = played.data.pixels[rows[at]].flatten(1)
                z = torch.relu(x @ first.T + bias) @ last.T + end
                log = torch.log_softmax(z, 1)
                p = torch.softmax(same[at] @ last.T + end, 1).detach()
                hard = -torch.log_softmax(z / chilled, 1)[range(len(at)), labels[at]]
                made = -torch.log_softmax(other[at] @ last.T + end, 1)[range(len(at)), drawn[at]]
                loss = (hard + 2.0 * 0.25 * made + 3.0 * 0.25 * (p * (p.log() - log)).sum(1)).mean()
                (gradient,) = torch.autograd.grad(loss, weights)
                weights = (weights - 0.1 * gradient).detach().requires_grad_()
        close(result.weights, weights.detach(), 1e-10)


def test_lean_engine_trains_it_as_the_loop_does():
    loop = Rounds(2)
    (own,) = loop.federation.architectures
    engine = Lean([own.network], loop.data, loop.world.engine.test, torch.float64, 1, 1)
    lean = rounds_of(World(loop.federation, engine), loop.config, 2)[-1].after
    close(lean["weights"], loop.states[1]["weights"], 1e-12)


def test_clusters_have_generators_of_their_own():
    alone = [Rounds(2, members=members) for members in ([0, 1], [2, 3, 4])]
    method = per_cluster(method_of(alone[0].config), [one.federation for one in alone])
    state = rounds_of(World(alone[0].federation, alone[0].world.engine), alone[0].config, 2, method)[-1].after
    for number, one in enumerate(alone):
        own = cluster_state(state, number)
        assert set(own) == set(one.states[1]) and all(torch.equal(own[k], one.states[1][k]) for k in own)


def test_fedgen_generator_depends_on_label_and_reloads_exactly():
    spec = spec_of()
    model = fedgen.new_generator(spec, CLASSES, HIDDEN, 3, torch.float64).eval()
    noise = torch.rand(4, 3, dtype=torch.float64)
    made = [fedgen.generated(model, noise, torch.full((4,), label), CLASSES) for label in range(CLASSES)]
    assert (made[0] - made[1]).abs().min() > 0
    other = fedgen.new_generator(spec, CLASSES, HIDDEN, 4, torch.float64).eval()
    assert not torch.equal(other[0].weight, model[0].weight)
    fedgen.load_generator(other, fedgen.model_tensors(model))
    assert torch.equal(fedgen.generated(other, noise, torch.zeros(4).long(), CLASSES), made[0])


SMALL = ["method.generator.steps=3", "method.generator.hidden=8", "method.generator.noise=4"]


def test_texts(tmp_path):
    _, rows, _ = run(tmp_path, *TINY_TEXTS, "method=fedgen", *SMALL)
    assert len(rows) == 2 and all(row["generator_loss"] > 0 for row in rows)


def test_fedgen_init_requires_single_linear_head():
    world = make_world([HIDDEN])
    (own,) = world.federation.architectures
    layout = dataclasses.replace(own.layout, head="layers.0.")
    fields = flat.FlatLayout(layout.parameters[:1], (), "layers.")
    fits, does_not = (
        dataclasses.replace(world.federation, architectures=(dataclasses.replace(own, layout=one),))
        for one in (layout, fields)
    )
    config = settings("fedgen")
    METHODS["fedgen"].init(config, fits)
    with refuses():
        METHODS["fedgen"].init(config, does_not)
