"""The training loop: it equals a textbook one, and a killed training ends as an undisturbed one."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.engine import loop
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.hardware import machine
from knot_runner.engine.objectives import cross_entropy
from knot_runner.engine.requests import Objective, Predict, StoredPart, Train, request_key
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.store import Store
from knot_runner.models.network import Network, build_network
from knot_runner.models.tokens import Encoded, batches
from knot_runner.util.errors import DivergedError
from tests.changed_settings import stage
from tests.disk import Killed

SPEC = ModelSettings("bert", "bert_tiny", "published", "scratch", "train", 500, "", "main", 16, 1, 2, 32, 0.1)


def put_texts(store, key, count, seed):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 12, (count,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.randint(5, 60, (int(offsets[-1]),), generator=draw, dtype=torch.int32)
    labels = torch.randint(3, (count,), generator=draw)
    store.put("tokens", key, {"ids": ids, "offsets": offsets, "second": lengths, "labels": labels}, {})
    return ("tokens", key)


@pytest.fixture
def place(tmp_path):
    return loop.Resources(Store(tmp_path / "artifacts"), torch.device("cpu"), None)


@pytest.fixture
def request_(place):
    return Train(
        stage="local", party="A", network=Network(SPEC, 500, 3), start=None,
        train=StoredPart(put_texts(place.store, "t", 50, 1)), valid=StoredPart(put_texts(place.store, "v", 20, 2)),
        objective=Objective(cross_entropy),
        training=stage(3, 16, 1e-2, 0.1),
        select="f1", seed=7,
    )  # fmt: skip


def nothing(done, total, text):
    pass


def plain_training(request, place):
    """A textbook loop in the engine's batch order: weights after every epoch, and each text's mean loss in it."""
    torch.manual_seed(keyed(request.seed, "init", request.party))
    model = build_network(request.network)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=request.training.lr, weight_decay=request.training.weight_decay
    )
    tensors = place.store.get(*request.train.examples).tensors()
    texts = Encoded(tensors["ids"], tensors["offsets"], tensors["second"])
    states, losses = [], []
    for epoch in range(1, request.training.epochs + 1):
        torch.manual_seed(keyed(request.seed, "dropout", request.stage, request.party, epoch))
        order = generator(request.seed, "order", request.stage, request.party, epoch)
        total = 0.0
        for index in batches(texts.lengths, request.training.batch_size, order):
            loss = F.cross_entropy(model.train()(**texts.batch(index)), tensors["labels"][index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(index)
        losses.append(total / len(texts))
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return states, losses


@pytest.fixture
def float64():
    """Float32 would compare noise: the key bias has gradient 0 in exact arithmetic, and AdamW scales rounding up."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_equals_a_plain_loop(request_, place, tmp_path, float64):
    weights, facts = loop.train_network(request_, place, tmp_path / "work", nothing)
    states, losses = plain_training(request_, place)
    expected = states[facts["best_epoch"] - 1]
    assert [row["loss"] for row in facts["epochs"]] == pytest.approx(losses, rel=1e-9)  # 50 texts: batches of 16 and 2
    assert set(weights) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-9, atol=1e-11)


def train_until(epoch, request, place, folder):
    """Train until the work of ``epoch`` of three is nearly done, and be killed."""

    def kill(done, total, text):
        if done == total * epoch // 3 - 1:
            raise Killed

    with pytest.raises(Killed):
        loop.train_network(request, place, folder, kill)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_train_network_resumes_in_any_epoch(request_, place, tmp_path, monkeypatch, epoch):
    undisturbed, facts = loop.train_network(request_, place, tmp_path / "a", nothing)
    train_until(epoch, request_, place, tmp_path / "b")
    assert Checkpoint(tmp_path / "b").load().step == (epoch - 1 or -1)
    first = machine()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    resumed, again = loop.train_network(request_, place, tmp_path / "b", nothing)
    assert facts["machines"] == [first] and again["machines"] == [first, machine()][epoch == 1 :]
    assert all(torch.equal(resumed[name], tensor) for name, tensor in undisturbed.items())
    assert (again["best_epoch"], again["best_score"]) == (facts["best_epoch"], facts["best_score"])
    assert [row["loss"] for row in again["epochs"]] == [row["loss"] for row in facts["epochs"]]


@pytest.mark.parametrize(("criterion", "kept"), [("f1", 1), ("loss", 0)])
def test_resumption_keeps_best_epoch(request_, place, tmp_path, monkeypatch, criterion, kept):
    """The best came before the last commit; with ``loss``, it is the untrained start."""
    asked, scores = dataclasses.replace(request_, select=criterion), [0.9, 0.1, 0.2, 0.3][: 4 - kept]
    made = []
    for folder, ends in (("undisturbed", ()), ("killed", (2, 3))):
        left = iter(scores)
        monkeypatch.setattr(loop._Network, "score", lambda *_, left=left: next(left))
        for epoch in ends:
            train_until(epoch, asked, place, tmp_path / folder)
        made.append(loop.train_network(asked, place, tmp_path / folder, nothing))
    (weights, facts), (resumed, again) = made
    assert facts["best_epoch"] == again["best_epoch"] == kept and again["best_score"] == 0.9
    assert all(torch.equal(resumed[name], tensor) for name, tensor in weights.items())


def test_train_network_reports_the_epoch_that_diverged(request_, place, tmp_path, monkeypatch):
    wild = dataclasses.replace(request_, training=stage(3, 16, 1e30, 0.0))
    with pytest.raises(DivergedError, match="local A: loss is not finite in epoch [12]"):
        loop.train_network(wild, place, tmp_path / "work", nothing)
    outputs = iter([torch.zeros(4, 2), torch.full((4, 2), math.nan)])
    monkeypatch.setattr(loop, "forward_all", lambda *_: next(outputs))
    monkeypatch.setattr(loop.metrics, "measured_score", lambda *_: 0.5)
    with pytest.raises(DivergedError, match="local A: predictions are not finite in epoch 2"):
        loop.train_network(request_, place, tmp_path / "other", nothing)


def test_selecting_by_loss_may_keep_the_start(request_, place, tmp_path):
    """Epoch 0 is a candidate: with a rate that only makes things worse, the start is what comes back."""
    place.store.put("local", "start", build_network(request_.network).state_dict(), {})
    bad = dataclasses.replace(request_, start=("local", "start"), select="loss", training=stage(2, 16, 5.0, 0.0))
    weights, facts = loop.train_network(bad, place, tmp_path / "work", nothing)
    assert facts["best_epoch"] == 0
    start = place.store.get("local", "start").tensors()
    assert all(torch.equal(weights[name], tensor) for name, tensor in start.items())


@pytest.mark.parametrize("criterion", ["f1", "loss"])
def test_select_last_keeps_last_epoch_despite_score(request_, place, tmp_path, monkeypatch, criterion, float64):
    scores = iter([0.9] * (criterion == "loss") + [0.5, 0.7, 0.6])
    monkeypatch.setattr(loop._Network, "score", lambda *_: next(scores))
    training = dataclasses.replace(request_.training, select="last")
    asked = dataclasses.replace(request_, select=criterion, training=training)
    weights, facts = loop.train_network(asked, place, tmp_path / "work", nothing)
    assert (facts["best_epoch"], facts["best_score"], facts["kept"]) == (3, 0.6, "last")
    for name, tensor in plain_training(request_, place)[0][2].items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("scores", "kept"), [([0.5, 0.7, 0.6], 2), ([0.7, 0.7, 0.7], 1)])
def test_select_best_keeps_first_best_epoch(request_, place, tmp_path, monkeypatch, scores, kept):
    left = iter(scores)
    monkeypatch.setattr(loop._Network, "score", lambda *_: next(left))
    _, facts = loop.train_network(request_, place, tmp_path / "work", nothing)
    assert (facts["best_epoch"], facts["kept"]) == (kept, "best")


def test_predictions_keep_the_order_of_texts(request_, place):
    torch.manual_seed(0)
    model = build_network(request_.network)
    place.store.put("local", "w", model.state_dict(), {})
    ask = Predict("predictions", "A", request_.network, ("local", "w"), request_.valid.examples)
    logits = loop.predict_network(ask, place, nothing)[0]["logits"]
    tensors = place.store.get(*request_.valid.examples).tensors()
    texts = Encoded(tensors["ids"], tensors["offsets"], tensors["second"])
    for row in range(len(texts)):
        alone = model.eval()(**texts.batch(torch.tensor([row])))[0]
        torch.testing.assert_close(logits[row], alone, rtol=1e-4, atol=1e-5)


def test_request_key_covers_everything_that_decides_results(request_):
    keys = {request_key(request_)}
    changes = [
        {"seed": 8}, {"party": "B"}, {"start": ("local", "x")}, {"select": "loss"}, {"train": request_.valid},
        {"training": dataclasses.replace(request_.training, lr=0.02)}, {"weights": "hub@1"},
        {"training": dataclasses.replace(request_.training, select="last")},
        {"objective": Objective(cross_entropy, {"x": 1})}, {"network": Network(SPEC, 501, 3)},
        {"network": Network(dataclasses.replace(SPEC, dropout=0.2), 500, 3)},
    ]  # fmt: skip
    for change in changes:
        keys.add(request_key(dataclasses.replace(request_, **change)))
    assert len(keys) == len(changes) + 1
    renamed = Network(dataclasses.replace(SPEC, name="other", vocab_size=9), 500, 3)
    assert request_key(dataclasses.replace(request_, network=renamed)) == request_key(request_)
