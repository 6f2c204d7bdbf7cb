"""FedDF: the server's distillation, by a loss or by terms, against loops typed out by hand."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from knot_runner.config.settings.methods.knot import SinkhornSettings
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.seeds import generator
from knot_runner.methods.around.clusters import cluster_state, per_cluster
from knot_runner.methods.around.server_distillation import drawn_examples, with_distillation
from knot_runner.methods.around.server_terms import check_server_terms
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federation import with_server
from knot_runner.methods.losses import distillation
from knot_runner.models.network import Network
from knot_runner.testing.methods import check_engines_agree
from knot_runner.util.errors import UserError
from tests.feddf_runs import POINTS, RANDOM, TRANSFER, close, distill
from tests.golden.messages import refuses
from tests.tiny import FEDDF_RKD
from tests.unit.methods.federated.plain import hidden_outputs, linear_logits
from tests.unit.methods.federated.worlds import CLASSES, World, make_world, method_of, rounds_of, settings

SOFT = {"teacher_temperature": 0.5}
SINKHORN = SinkhornSettings("sinkhorn", "newton", 0.1, 1e-9, 0.5)


class OneRound:
    """FedAvg's first round of a linear model with the server's distillation after it; ``row``: what was said of it."""

    def __init__(self, spec, algorithm="fedavg", members=None, round=0, hidden=(), **training):
        self.world = make_world(list(hidden)).with_training(**training)
        federation = with_server(self.world.federation, torch.arange(0, 40), TRANSFER, RANDOM)
        self.federation = federation if members is None else federation.cluster(members)
        self.config, self.round = settings(algorithm, server_distillation=spec), round
        (one,) = rounds_of(World(self.federation, self.world.engine), self.config, first=round)
        self.trained, self.averaged, self.state, self.row = one.trained, one.folded, one.after, one.said
        self.tested = [len(request.test_rows) for request in one.asked.distillation]

    def logits(self, weights, rows):
        """Of the linear model, typed out: [n, C]."""
        return linear_logits(weights, self.world.engine.data.pixels[rows].flatten(1))

    def clients(self, rows):
        """Logits of the round's clients by the models that they sent, [n, K, C]."""
        sent = self.trained[: len(self.federation.drawn(self.round))]
        return torch.stack([self.logits(result.weights, rows) for result in sent], 1)


def by_hand(one, loss, rows=TRANSFER):
    """The averaged model trained on ``loss(logits, positions)`` for the epochs of ``one`` in float64: [P]."""
    spec = one.config.server_distillation
    weights = one.averaged["weights"].clone().requires_grad_()
    kinds = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=spec.momentum)}
    optimizer = kinds[spec.optimizer]([weights], lr=spec.lr, weight_decay=spec.weight_decay)
    draws = generator(3, "local", one.round, -1)
    for _ in range(spec.epochs):
        for positions in torch.randperm(len(rows), generator=draws).split(spec.batch_size):
            optimizer.zero_grad()
            loss(one.logits(weights, rows[positions]), positions).mean().backward()
            optimizer.step()
    return weights.detach()


def kl(q, logits):
    return (torch.xlogy(q, q) - q * torch.log_softmax(logits, -1)).sum(-1)


def bias_of(logits):
    counts = torch.bincount(logits.argmax(1), minlength=CLASSES) + 1.0
    return counts / counts.sum()


def weights_by_hand(one, weighting, rows):
    """W [n, K] of KNOT, typed out."""
    q = torch.softmax(one.clients(rows) / one.config.server_distillation.teacher_temperature, -1)
    sizes = torch.tensor([len(one.federation.clients[result.client].train) for result in one.trained]).double()
    biases = torch.stack([bias_of(own) for own in one.clients(RANDOM).unbind(1)])
    return {
        "A": torch.ones(q.shape[:2]),
        "D": (sizes / sizes.sum()).expand(q.shape[:2]),
        "U": (q - 1 / CLASSES).norm(dim=2),
        "E": (q - biases).norm(dim=2),
    }[weighting]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
def test_feddf_ensemble_each_weighs_clients_as_teachers(weighting, normalize):
    sgd = {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 0.5}
    one = OneRound(distill(weighting=weighting, normalize=normalize, student_temperature=2.0, **SOFT, **sgd))
    q, w = torch.softmax(one.clients(TRANSFER) / 0.5, -1), weights_by_hand(one, weighting, TRANSFER)
    if normalize:
        w = w / w.sum(1, keepdim=True)
    wanted = by_hand(one, lambda z, at: (w[at] * kl(q[at], z[:, None] / 2.0)).sum(1))
    close(one.state["weights"], wanted)
    assert len(one.trained) == 3 and (wanted - one.averaged["weights"]).abs().max() > 0.01


@pytest.mark.parametrize("weighting", ["A", "D", "E"])
def test_feddf_ensemble_logits_teaches_mean_client_logits(weighting):
    one = OneRound(distill(weighting=weighting, ensemble="logits", **SOFT, optimizer="sgd", lr=1.0))
    w = weights_by_hand(one, weighting, TRANSFER)
    mean = (w[:, :, None] * one.clients(TRANSFER)).sum(1) / w.sum(1, keepdim=True)
    q = torch.softmax(mean / 0.5, -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z)))


def test_feddf_sinkhorn_e_matches_knot_distillation():
    one = OneRound(distill(loss=SINKHORN, weighting="E"))
    told = one.clients(TRANSFER)
    sizes = [len(one.federation.clients[result.client].train) for result in one.trained]
    knot = {
        "loss": SINKHORN, "weighting": "E", "normalize": False, "student_temperature": 1.0, "teacher_temperature": 1.0,
        "teachers": ["a", "b", "c"], "shares": [size / sum(sizes) for size in sizes], "points": POINTS,
        "biases": [bias_of(own).tolist() for own in one.clients(RANDOM).unbind(1)],
    }  # fmt: skip
    inputs = ObjectiveInputs(torch.full((32,), -1), dict(zip("abc", told.unbind(1), strict=True)), lambda: told)
    rows, loss = distillation(knot, inputs)
    wanted = by_hand(one, lambda z, at: loss(z, {name: own[at] for name, own in rows.items()}))
    close(one.state["weights"], wanted)
    assert (wanted - one.averaged["weights"]).abs().max() > 0.01


def held_by_hand(one, share=0.25):
    order = torch.randperm(len(TRANSFER), generator=generator(3, "transfer valid"))
    count = int(share * len(TRANSFER))
    return TRANSFER[order[count:].sort().values], TRANSFER[order[:count].sort().values]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("valid", "patience"), [(0.0, 1000), (0.25, 1000), (0.25, 8)])
def test_feddf_follows_cosine_schedule_and_early_stopping(optimizer, valid, patience):
    lr = {"adamw": 0.3, "sgd": 3.0}[optimizer]
    spec = distill(ensemble="logits", schedule="cosine", valid=valid, check=4, patience=patience, epochs=6, lr=lr,
                  optimizer=optimizer)  # fmt: skip
    one = OneRound(spec)
    train, held = held_by_hand(one, valid)
    told = {"train": one.clients(train), "held": one.clients(held)}
    q, aside = (torch.softmax(logits.mean(1), -1) for logits in told.values())
    weights = one.averaged["weights"].clone().requires_grad_()
    kind = {"adamw": functools.partial(torch.optim.AdamW, weight_decay=0.0), "sgd": torch.optim.SGD}[optimizer]
    made = kind([weights], lr=lr)
    draws, step, last = generator(3, "local", 0, -1), 0, 6 * -(-len(train) // 5)
    checked = [(kl(aside, one.logits(weights.detach(), held)).mean(), 0, weights.detach().clone())] if valid else []
    ended = False
    for _ in range(6):
        for at in torch.randperm(len(train), generator=draws).split(5):
            if ended:
                break
            made.param_groups[0]["lr"] = lr * (1 + np.cos(np.pi * step / last)) / 2
            made.zero_grad()
            kl(q[at], one.logits(weights, train[at])).mean().backward()
            made.step()
            step += 1
            if valid and (step % 4 == 0 or step == last):
                now = weights.detach().clone()
                checked.append((kl(aside, one.logits(now, held)).mean(), step, now))
                best = min(checked, key=lambda actual: float(actual[0]))
                ended = step % 4 == 0 and step - best[1] >= patience
    assert one.row["distill_steps"] == step
    close(one.state["weights"], best[2] if valid else weights.detach(), 5e-5)
    if valid and optimizer == "adamw":  # SGD comes nearer with every step: the mean of linear models is one
        assert (step < last) is (patience == 8) and best[1] < step


def test_feddf_round_reports_accuracy_steps_and_loss():
    one = OneRound(distill(lr=0.5))
    labels = one.world.engine.test.labels[:40]
    right = [(one.logits(s["weights"], torch.arange(40)).argmax(1) == labels).double().mean() for s in
             (one.averaged, one.state)]  # fmt: skip
    assert one.row["distill_before"] == pytest.approx(right[0]) and one.row["distill_after"] == pytest.approx(right[1])
    assert one.row["distill_steps"] == 2 * 7 and one.row["distill_loss"] > 0
    assert one.row["distill_before"] != one.row["distill_after"] and one.row["distill_tested"] == 40
    unmeasured = OneRound(distill(lr=0.5), evaluate_every=3)
    assert set(unmeasured.row) == {"distill_loss", "distill_steps", "bytes_up", "bytes_down"}
    assert one.tested == [40] and unmeasured.tested == [0]
    assert unmeasured.row["bytes_up"] == unmeasured.row["bytes_down"] == 0  # the server has the models
    assert torch.equal(unmeasured.state["weights"], one.state["weights"])


@pytest.mark.parametrize(("after", "every", "wanted"), [(0, 1, [0, 1, 2, 3]), (2, 1, [2, 3]), (1, 2, [1, 3])])
def test_rounds_that_distill(after, every, wanted):
    spec = distill(after=after, every=every)
    rounds = [OneRound(spec, round=round) for round in range(4)]
    assert [one.round for one in rounds if one.row] == wanted == [r for r in range(4) if spec.distills(r)]
    for one in rounds:
        assert torch.equal(one.state["weights"], one.averaged["weights"]) is not bool(one.row)


def test_server_distills_only_methods_that_fold_models():
    config, alone = settings(server_distillation=distill()), replace(METHODS["fedavg"], fold=None, fold_each=None)
    assert with_distillation(replace(alone, fold_each=lambda *_: None), config).exchange(config)
    assert with_distillation(METHODS["fedavg"], config).exchange(config) and not METHODS["fedavg"].exchange
    with refuses():
        with_distillation(alone, config)


def test_drawn_examples_chains_permutations_of_transfer_set():
    spec = distill(steps=10, batch_size=5)
    one = OneRound(spec)
    assert one.row["distill_steps"] == 10
    drawn = drawn_examples(spec, one.federation, 0)
    assert drawn[:32].sort().values.tolist() == TRANSFER.tolist() and len(drawn) == 50
    assert len(drawn[32:].unique()) == 18 and drawn[:18].tolist() != drawn[32:].tolist()
    assert torch.equal(drawn, drawn_examples(spec, one.federation, 0))
    assert not torch.equal(drawn, drawn_examples(spec, one.federation, 1))
    few = OneRound(distill(steps=2, batch_size=5, optimizer="sgd"))  # clients are asked about these alone
    rows = drawn_examples(few.config.server_distillation, few.federation, 0).sort().values
    assert len(rows) == 10 and few.row["distill_steps"] == 2


@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold", "ditto", "apfl", "fedala"])
def test_feddf_distillation_works_with_other_global_methods(algorithm):
    one = OneRound(distill(), algorithm)
    q = torch.softmax(one.clients(TRANSFER), -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z[:, None]).sum(1)))
    assert set(one.state) == set(one.averaged)


def test_per_cluster_distillation_equals_each_cluster_alone():
    spec, groups = distill(weighting="E"), ([0, 1], [2, 3, 4])
    alone = [OneRound(spec, members=members) for members in groups]
    method = per_cluster(method_of(alone[0].config), [one.federation for one in alone])
    (both,) = rounds_of(World(alone[0].federation, alone[0].world.engine), alone[0].config, 1, method)
    state, row = both.after, both.said
    for number, one in enumerate(alone):
        assert torch.equal(cluster_state(state, number)["weights"], one.state["weights"])
    first, second = (one.row for one in alone)
    assert row["distill_steps"] == first["distill_steps"] + second["distill_steps"]
    assert [first["distill_tested"], second["distill_tested"]] == [8, 12] and row["distill_tested"] == 20
    assert [len(request.test_rows) for request in both.asked.distillation] == [8, 12]
    assert row["distill_after"] == pytest.approx((8 * first["distill_after"] + 12 * second["distill_after"]) / 20)


NETWORK = Network(MlpSettings("mlp", "t", [5], "logits"), (1, 2, 2), CLASSES)
SGD = {"optimizer": "sgd", "lr": 0.2}
KD = {"kd": {"weight": 0.7, "temperature": 2.0}}
#: Of features, by the distances between examples alone.
RKD = {"rkd": {"weight": 1.5, "distance": 1.0, "angle": 0.0}}


class Distilled(OneRound):
    """The same of an MLP with one hidden layer, by the server's terms."""

    def __init__(self, **spec):
        super().__init__(distill(**{"ensemble": "logits", **SGD, **spec}), hidden=[5])

    def logits(self, weights, rows):
        """(features, logits) of the MLP, typed out."""
        return hidden_outputs(weights, self.world.engine.data.pixels[rows].flatten(1))

    def answers(self):
        """(features [K, n, H], logits [K, n, C]) of the clients on the transfer set."""
        actual = [self.logits(result.weights, TRANSFER) for result in self.trained]
        return tuple(torch.stack(part) for part in zip(*actual, strict=True))


def softened(z, targets, tau):
    """tau^2 KL(q || softmax(z / tau)), mean over the batch."""
    return tau**2 * (targets * (targets.log() - torch.log_softmax(z / tau, -1))).sum(-1).mean()


def distances(features):
    """All distances between examples over their mean, as RKD has them."""
    gaps = features[:, None] - features[None]
    actual = (gaps.square().sum(-1) + torch.eye(len(features))).sqrt() * (1 - torch.eye(len(features)))
    return actual / actual[actual > 0].mean()


def huber(x):
    return torch.where(x.abs() < 1, x.square() / 2, x.abs() - 0.5)


def confidences(logits):
    """U: distance of each client's output from uniform, [K, n, 1], over their sum."""
    actual = (torch.softmax(logits, -1) - 1 / CLASSES).norm(dim=-1, keepdim=True)
    return actual / actual.sum(0)


@pytest.mark.parametrize("weighting", ["A", "U"])
def test_server_terms_weigh_features_like_logits(weighting):
    one = Distilled(terms={**KD, **RKD}, weighting=weighting)
    features, logits = one.answers()
    share = 1 / len(features) if weighting == "A" else confidences(logits)
    features, q = (share * features).sum(0), torch.softmax((share * logits).sum(0) / 2.0, -1)

    def loss(outputs, at):
        own, z = outputs
        relation = huber(distances(own) - distances(features[at])).mean()
        return 0.7 * softened(z, q[at], 2.0) + 1.5 * relation

    close(one.state["weights"], by_hand(one, loss), 1e-10)
    assert (one.state["weights"] - Distilled(terms=KD, weighting=weighting).state["weights"]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["sinkhorn", "hint", "sp", "rkd", "pkt", "crd", "triplet"])
def test_server_terms_without_labels_teach_the_server(name):
    one = Distilled(terms={name: {"weight": 1.0}})
    assert (one.state["weights"] - one.averaged["weights"]).abs().max() > 1e-6
    assert one.row["distill_loss"] > 0


def test_server_terms_follow_the_cosine_schedule():
    steady, falling = Distilled(terms=KD, steps=6), Distilled(terms=KD, steps=6, schedule="cosine")
    assert steady.row["distill_steps"] == falling.row["distill_steps"] == 6
    moved = [(one.state["weights"] - one.averaged["weights"]).norm() for one in (steady, falling)]
    assert 0.3 * moved[0] < moved[1] < 0.9 * moved[0]


WRONG = [
    ({"ce": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.ce: the term needs labels, but the transfer set"),
    ({"dkd": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.dkd: the term needs labels"),
    ({"at": {"weight": 1}}, {}, r"method\.server_distillation\.terms\.at\.taps: t and t have no feature maps"),
    ({"rkd": {"weight": 1}}, {"algorithm": "fedmd"}, r"method\.server_distillation\.terms\.rkd: the term needs inner"),
    ({"triplet": {"weight": 1}}, {"examples": 2}, r"method\.server_distillation\.terms\.triplet. Use at least 3"),
]


@pytest.mark.parametrize(("terms", "changes", "said"), WRONG)
def test_terms_that_cannot_be(terms, changes, said):
    changes = {"algorithm": "fedavg", "examples": 9} | changes
    config = settings(changes["algorithm"], server_distillation=distill(terms=terms, ensemble="logits"))
    with pytest.raises(UserError, match=said):
        check_server_terms(config.algorithm, config.server_distillation, [NETWORK], changes["examples"])


@pytest.mark.parametrize(("changes", "key"), [
    ({"student_temperature": 2.0}, "student_temperature"), ({"teacher_temperature": 0.5}, "teacher_temperature"),
    ({"ensemble": "each"}, "ensemble"), ({"valid": 0.2}, "valid"),
    ({"terms": {"kd": {"weight": "auto"}}}, "terms.kd.weight"),
])  # fmt: skip
def test_server_terms_refuse_loss_only_settings(changes, key):
    with pytest.raises(Exception, match="not supported (with|here)") as problem:
        distill(**{"terms": KD, "ensemble": "logits", **changes})
    assert problem.value.key == key
    if "terms" not in changes:
        distill(**changes)


#: Terms of inner layers.
RUN = [
    *FEDDF_RKD, "+method.server_distillation.terms.hint.weight=1", "training.rounds=2",
    "method.server_distillation.batch_size=16", "method.server_distillation.optimizer=sgd",
    "method.server_distillation.lr=0.05",
]  # fmt: skip


def test_engines_agree_on_terms(tmp_path):
    check_engines_agree(RUN, tmp_path)
