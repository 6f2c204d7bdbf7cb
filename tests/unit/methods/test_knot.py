"""KNOT's protocol by hand on three parties, and its objective against typed formulas and an independent oracle."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.methods.knot import (
    BiasSettings,
    EntropySettings,
    KnotSettings,
    SinkhornSettings,
    TeachersSettings,
)
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.engine.objectives import ObjectiveInputs, cross_entropy
from knot_runner.engine.requests import Predict, Train
from knot_runner.engine.store import Store
from knot_runner.methods import knot
from knot_runner.methods.losses import LOSSES, check_loss_and_weighting, distillation
from knot_runner.methods.party import PartyFederation, StageState, StoredParty
from knot_runner.models.network import Network
from knot_runner.transport import Solver, transport_loss
from tests.golden.messages import refuses

SPEC = ModelSettings("bert", "bert_tiny", "published", "scratch", "train", 500, "", "main", 16, 1, 2, 32, 0.1)
STAGES = SimpleNamespace(local="the local stage", pretrain="the global stage", distill="the student's stage")
PARTIES = ("near", "far", "hub")
BIAS = BiasSettings(texts=4, tokens=3, images=1, noise="uniform")


def party(number, name, size):
    """With a network of its own, told apart by its classes."""
    examples = {split: ("tokens", f"{name}-{split}") for split in ("train", "valid", "test")}
    return StoredParty(name, examples, Network(SPEC, 500, 3 + number), size)


def federation(support="semantic"):
    """Two local models of 100 and 300 texts, a global one of 600, a transfer set of 50."""
    *clients, server, transfer = map(party, range(4), (*PARTIES, "pool"), (100, 300, 600, 50))
    labels = Labels(["bad", "fair", "good"], [[0.0], [1.0], [2.0]], support)
    return PartyFederation(tuple(clients), labels, STAGES, 7, server, transfer, random=("tokens", "noise"))


def method(weighting="E"):
    return KnotSettings("mine", "knot", EntropySettings("entropy", "kl"), weighting, True, 2.0, 3.0, BIAS, False)


@pytest.fixture
def run(tmp_path):
    store = Store(tmp_path)

    def run(config):
        whole = federation()
        state, asked, said = knot.init(config, whole), [], []
        while requests := knot.plan(config, state, whole, len(asked)):
            made = [answer(store, len(asked), i, request) for i, request in enumerate(requests)]
            state, row = knot.fold(config, state, whole, len(asked), requests, made)
            asked.append(requests)
            said.append(row)
        return asked, said, state

    return run


def answer(store, round, number, request):
    """What the engine would give: the artifact is named by its round and number; logits favor class ``number``."""
    if isinstance(request, Train):
        tensors, info = {"weight": torch.zeros(1)}, {"best_score": 0.5 + number, "best_epoch": 4}
    else:
        tensors, info = {"logits": torch.eye(3)[[number % 3, number % 3, number % 3, 0]]}, {}
    return store.put(request.stage, f"{round}.{number}", tensors, info)


def test_teachers_train_alone_on_their_own_texts(run):
    (teachers, *_), said, state = run(method())
    assert [request.party for request in teachers] == list(PARTIES)
    assert [request.stage for request in teachers] == ["local", "local", "pretrain"]
    for request in teachers:
        own, parts = request.party, (request.train, request.valid)
        assert [part.examples for part in parts] == [("tokens", f"{own}-train"), ("tokens", f"{own}-valid")]
        assert request.network == {party.name: party.network for party in federation().parties}[own]
        assert request.start is None and request.seed == 7 and request.weights == "scratch"
        assert request.objective.make is cross_entropy and request.select == "score"
        assert request.training == (STAGES.pretrain if own == "hub" else STAGES.local)
    assert said[0] == {"near": 0.5, "far": 1.5, "hub": 2.5}
    assert [state.weights[party] for party in PARTIES] == ["local/0.0", "local/0.1", "pretrain/0.2"]
    assert state.before == "pretrain/0.2"


def test_teachers_label_both_transfer_splits(run):
    (_, labels, _), _, state = run(method("A"))
    assert all(isinstance(request, Predict) and request.output == "logits" for request in labels)
    asked = [(request.stage, request.party, request.weights, request.examples) for request in labels]
    kept = {"near": ("local", "0.0"), "far": ("local", "0.1"), "hub": ("pretrain", "0.2")}
    wanted = itertools.product(PARTIES, ("train", "valid"))
    assert asked == [("soft_labels", party, kept[party], ("tokens", f"pool-{split}")) for party, split in wanted]
    assert [state.soft[party]["train"] for party in PARTIES] == [f"soft_labels/1.{i}" for i in (0, 2, 4)]
    assert [state.soft[party]["valid"] for party in PARTIES] == [f"soft_labels/1.{i}" for i in (1, 3, 5)]


def test_knot_estimates_smoothed_biases_for_weighting_e(run):
    for weighting in "ADU":
        assert not [request for request in run(method(weighting))[0][1] if request.stage == "bias"]
    (_, labels, last), said, state = run(method("E"))
    biases = [request for request in labels if request.stage == "bias"]
    assert [(request.party, request.examples) for request in biases] == [(p, ("tokens", "noise")) for p in PARTIES]
    # of four random texts: requests 6, 7, 8 say class 0 four times; class 1 three times; class 2 three times
    expected = [[5 / 7, 1 / 7, 1 / 7], [2 / 7, 4 / 7, 1 / 7], [2 / 7, 1 / 7, 4 / 7]]
    for party, bias in zip(PARTIES, expected, strict=True):
        assert state.bias[party] == pytest.approx(bias) and said[1][party] == state.bias[party]
    assert last[0].objective.settings["biases"] == [state.bias[party] for party in PARTIES]


def test_student_starts_from_global_model_with_all_teachers(run):
    (_, _, (request,)), said, state = run(method("D"))
    assert request.stage == "distill" and request.party == "student" and request.seed == 7
    assert request.start == ("pretrain", "0.2") and request.network == federation().server.network
    assert request.training == STAGES.distill and request.select == "loss"
    assert request.objective.make is distillation
    for part, split, keys in ((request.train, "train", "024"), (request.valid, "valid", "135")):
        assert part.examples == ("tokens", f"pool-{split}")
        assert part.inputs == {p: ("soft_labels", f"1.{key}") for p, key in zip(PARTIES, keys, strict=True)}
    settings = request.objective.settings
    assert settings["teachers"] == list(PARTIES) and settings["biases"] is None
    assert settings["shares"] == [0.1, 0.3, 0.6]  # of the 1,000 training texts; the transfer set has no labels
    assert (settings["weighting"], settings["normalize"]) == ("D", True)
    assert (settings["student_temperature"], settings["teacher_temperature"]) == (2.0, 3.0)
    assert settings["points"] == [[0.0], [1.0], [2.0]]
    assert state.student == "distill/2.0" and state.before == "pretrain/0.2" and state.selected_epoch == 4
    assert said[2] == {"epoch": 4, "loss": -0.5}


def test_teachers_alone_end_with_their_biases(run):
    asked, _, state = run(TeachersSettings("alone", "teachers", BIAS))
    stages = [[request.stage for request in requests] for requests in asked]
    assert stages == [["local", "local", "pretrain"], ["bias"] * 3]
    assert set(state.bias) == set(PARTIES) and state.student == state.before


LINE_LOSS = SinkhornSettings("sinkhorn", "line", 0.01, 1e-8, 0.5)
ON_LINE = KnotSettings("mine", "knot", LINE_LOSS, "A", False, 1.0, 1.0, BIAS, False)


@pytest.mark.parametrize(("config", "support"), [(method("EE"), "semantic"), (ON_LINE, "onehot")])
def test_init_rejects_unsuitable_loss_or_weighting(config, support):
    assert knot.init(ON_LINE, federation()) == StageState()
    with refuses():
        knot.init(config, federation(support))


def test_fold_distinguishes_equal_transfer_splits(tmp_path):
    same = dataclasses.replace(federation().transfer, examples=dict.fromkeys(("train", "valid"), ("tokens", "pool")))
    whole, store, config = dataclasses.replace(federation(), transfer=same), Store(tmp_path), method("A")
    state = StageState({name: f"local/{name}" for name in PARTIES}, before="pretrain/hub")
    requests = knot.plan(config, state, whole, 1)
    state, _ = knot.fold(
        config, state, whole, 1, requests, [answer(store, 1, i, one) for i, one in enumerate(requests)]
    )
    assert {name: list(splits) for name, splits in state.soft.items()} == dict.fromkeys(PARTIES, ["train", "valid"])
    assert len(knot.plan(config, state, whole, 2)) == 1


Q = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]])  # one text, two teachers
P = torch.tensor([[[0.5, 0.25, 0.25]]])
LINE = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
FORMS = {
    "kl": lambda p, q: sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
    "cross_entropy": lambda p, q: -sum(b * math.log2(a) for a, b in zip(p, q, strict=True)),
    "symmetric": lambda p, q: (FORMS["kl"](p, q) + FORMS["kl"](q, p)) / 2,
}


@pytest.mark.parametrize("form", FORMS)
def test_entropy_matches_formula_and_stays_finite(form):
    function, options = LOSSES["entropy"].function, EntropySettings("entropy", form)
    expected = [FORMS[form](P[0, 0].tolist(), q) for q in Q[0].tolist()]
    assert function(options, P.log(), Q, LINE)[0].tolist() == pytest.approx(expected, rel=1e-6)
    sure = [0.9996, 0.0003, 0.0001]
    actual = function(options, P.double().log(), torch.tensor([[sure]], dtype=torch.float64), LINE)
    assert actual.item() == pytest.approx(FORMS[form](P[0, 0].tolist(), sure), rel=1e-12)
    logits = torch.zeros(1, 1, 3, requires_grad=True)
    value = function(options, logits.log_softmax(-1), torch.eye(3)[None], LINE).sum()
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("solver", ["newton", "geomloss"])
@pytest.mark.parametrize(("epsilon", "scaling"), [(0.03, 0.5), (0.5, 0.9)])
def test_sinkhorn_is_the_loss_of_its_settings(solver, epsilon, scaling):
    """Value and gradient of T(p, q), p the student's, at the epsilon, tolerance and scaling that were asked for."""
    options, p = SinkhornSettings("sinkhorn", solver, epsilon, 1e-8, scaling), P.clone().requires_grad_()
    ours = LOSSES["sinkhorn"].function(options, p.log(), Q, LINE)
    theirs = transport_loss(p, Q, LINE, Solver(solver, epsilon, 1e-8, scaling))
    assert ours.shape == (1, 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    gradients = (torch.autograd.grad(value.sum(), p)[0] for value in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def objective_settings(**change):
    return {
        "loss": EntropySettings("entropy", "kl"), "weighting": "D", "normalize": False, "student_temperature": 1.0,
        "teacher_temperature": 1.0, "teachers": ["a", "b"], "shares": [1 / 3, 2 / 3],
        "biases": [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], "points": LINE.tolist(), **change,
    }  # fmt: skip


def objective(logits, **change):
    return distillation(
        objective_settings(**change), ObjectiveInputs(torch.zeros(len(logits["a"])), logits, lambda: None)
    )


@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
@pytest.mark.parametrize("normalize", [False, True])
def test_objective_is_equation_3_in_float64(weighting, normalize):
    """Against the formula (eq. 3 with KL) typed in numpy, in the precision of the models."""
    draws = torch.Generator().manual_seed(4)
    teachers = {name: torch.randn(6, 3, generator=draws, dtype=torch.float64) for name in "ab"}
    temperatures = {"teacher_temperature": 1.7, "student_temperature": 1.3}
    rows, loss = objective(teachers, weighting=weighting, normalize=normalize, **temperatures)
    student = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    q = np.stack([np.exp(own.numpy() / 1.7) for own in teachers.values()], 1)
    q /= q.sum(2, keepdims=True)
    log_p = student.numpy() / 1.3 - np.log(np.exp(student.numpy() / 1.3).sum(1, keepdims=True))
    w = {
        "A": np.ones((6, 2)),
        "D": np.tile([1 / 3, 2 / 3], (6, 1)),
        "U": np.linalg.norm(q - 1 / 3, axis=2),
        "E": np.linalg.norm(q - np.array(objective_settings()["biases"]), axis=2),
    }[weighting]
    expected = (w * (q * (np.log(q) - log_p[:, None])).sum(2)).sum(1) / (w.sum(1) if normalize else 1)
    np.testing.assert_allclose(loss(student, rows).numpy(), expected, rtol=1e-13)


def test_normalized_weighting_equals_mean_for_uniform_teachers():
    """Both teachers are uniform, which is also their bias: all weights are 0, and the loss is the mean of theirs."""
    uniform, biases = {name: torch.zeros(2, 3) for name in "ab"}, [[1 / 3] * 3] * 2
    student = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    by_hand = [math.log(1 / 3) - (math.log(0.5) + 2 * math.log(0.25)) / 3, 0.0]
    for weighting in "UE":
        rows, loss = objective(uniform, weighting=weighting, normalize=True, biases=biases)
        np.testing.assert_allclose(loss(student, rows).numpy(), by_hand, atol=1e-6)


def test_tree_solver_compares_distances_of_labels_in_float64():
    corners = [[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]]
    check_loss_and_weighting(SinkhornSettings("sinkhorn", "tree", 0.01, 1e-8, 0.5), "A", corners, "method")
