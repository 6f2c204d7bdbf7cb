"""FedDF: the server's distillation against loops typed out by hand, its examples, records, resumption and refusals."""

import dataclasses
import functools
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import BiasSettings, ServerDistillation, run_id
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.seeds import generator
from knot_runner.methods.federated import METHODS
from knot_runner.methods.federated.per_cluster import cluster_state, per_cluster
from knot_runner.methods.federated.population import ServerExamples
from knot_runner.methods.federated.server_distillation import drawn_examples
from knot_runner.methods.losses import distillation
from knot_runner.pipelines.client_rounds import run_exchange
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.setup import make_setup
from knot_runner.report.records.schema import is_round
from tests.forked import Forked, reached
from tests.methods.federated.conftest import CLASSES, make_world, settings
from tests.tiny import TINY_IMAGES, TINY_TEXTS, replaced

ENTROPY = {"name": "entropy", "form": "kl"}
SINKHORN = {"name": "sinkhorn", "solver": "newton", "epsilon": 0.1, "tolerance": 1e-9, "scaling": 0.5}
POINTS = [[0.0], [1.0], [3.0]]
TRANSFER, RANDOM = torch.arange(30, 62), torch.arange(5, 25)


def distil(**changes) -> ServerDistillation:
    """The server's settings with ``changes``."""
    plain = {"loss": ENTROPY, "weighting": "A", "ensemble": "each", "normalise": False, "student_temperature": 1.0,
             "teacher_temperature": 1.0, "epochs": 2, "steps": None, "batch": 5, "lr": 0.05, "optimiser": "adamw",
             "momentum": 0.0, "weight_decay": 0.0, "after": 0, "every": 1, "bias": BiasSettings(20, 20)}  # fmt: skip
    return ServerDistillation(**{**plain, **changes})


class OneRound:
    """FedAvg's first round of a linear model with the server's distillation after it; ``row``: what was said of it."""

    def __init__(self, spec, algorithm="fedavg", members=None, round=0, transfer=TRANSFER, **training) -> None:
        self.world = make_world([]).with_training(**training)
        server = ServerExamples(transfer, RANDOM, torch.arange(0, 40), POINTS)
        population = dataclasses.replace(self.world.population, server=server)
        self.population = population if members is None else population.cluster(members)
        self.hp, self.round, engine = settings(algorithm, distil=spec), round, self.world.engine
        method = METHODS[algorithm]
        state = method.init(self.hp, self.population)
        requests = method.plan(self.hp, state, self.population, round)
        self.trained = engine.train(requests)
        self.averaged, _ = method.fold(self.hp, state, self.population, round, requests, self.trained)
        self.state, self.row = run_exchange(
            method, self.hp, self.population, engine, round, self.averaged, self.trained
        )

    def logits(self, weights, rows):
        """Of the linear model, typed out: [n, C]."""
        inputs = self.world.engine.data.pixels[rows].flatten(1)
        return inputs @ weights[: CLASSES * 4].view(CLASSES, 4).T + weights[CLASSES * 4 :]

    def clients(self, rows):
        """Logits of the round's clients, [n, K, C]."""
        return torch.stack([self.logits(result.weights, rows) for result in self.trained], 1)


def by_hand(one, loss, rows=TRANSFER):
    """The averaged model trained on ``loss(logits, positions)`` for the epochs of ``one`` in float64: [P]."""
    spec = one.hp.distil
    weights = one.averaged["weights"].clone().requires_grad_()
    kinds = {"adamw": torch.optim.AdamW, "sgd": functools.partial(torch.optim.SGD, momentum=spec.momentum)}
    optimiser = kinds[spec.optimiser]([weights], lr=spec.lr, weight_decay=spec.weight_decay)
    draws = generator(3, "local", one.round, -1)
    for _ in range(spec.epochs):
        for positions in torch.randperm(len(rows), generator=draws).split(spec.batch):
            optimiser.zero_grad()
            loss(one.logits(weights, rows[positions]), positions).mean().backward()
            optimiser.step()
    return weights.detach()


def kl(q, logits):
    """KL(q || softmax(logits)) of each row."""
    return (torch.xlogy(q, q) - q * torch.log_softmax(logits, -1)).sum(-1)


def close(found, wanted, atol=1e-6):
    """Targets are rounded to float32."""
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=atol)


@pytest.mark.parametrize("ensemble", ["each", "logits"])
@pytest.mark.parametrize("own", [{}, {"optimiser": "sgd", "momentum": 0.5, "weight_decay": 0.1, "lr": 0.5}])
def test_one_client_whose_data_are_the_transfer_set_is_plain_distillation(own, ensemble):
    rows = make_world([]).population.train[2]
    spec = distil(ensemble=ensemble, student_temperature=2.0, teacher_temperature=0.5, **own)
    one = OneRound(spec, members=[2], transfer=rows, participants=1)
    q = torch.softmax(one.clients(rows)[:, 0] / 0.5, -1)
    wanted = by_hand(one, lambda logits, at: kl(q[at], logits / 2.0), rows)
    close(one.state["weights"], wanted)
    assert (wanted - one.averaged["weights"]).abs().max() > 0.01


def bias_of(logits):
    counts = torch.bincount(logits.argmax(1), minlength=CLASSES) + 1.0
    return counts / counts.sum()


def weights_by_hand(one, weighting, rows):
    """W [n, K] of KNOT, typed out."""
    q = torch.softmax(one.clients(rows), -1)
    sizes = torch.tensor([len(one.population.train[result.client]) for result in one.trained]).double()
    biases = torch.stack([bias_of(own) for own in one.clients(RANDOM).unbind(1)])
    return {
        "A": torch.ones(q.shape[:2]),
        "D": (sizes / sizes.sum()).expand(q.shape[:2]),
        "U": (q - 1 / CLASSES).norm(dim=2),
        "E": (q - biases).norm(dim=2),
    }[weighting]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("weighting", ["A", "D", "U", "E"])
def test_every_client_is_a_teacher_with_its_weight(weighting, normalise):
    one = OneRound(distil(weighting=weighting, normalise=normalise, optimiser="sgd", lr=1.0))
    q, w = torch.softmax(one.clients(TRANSFER), -1), weights_by_hand(one, weighting, TRANSFER)
    if normalise:
        w = w / w.sum(1, keepdim=True)
    assert len(one.trained) == 3
    close(one.state["weights"], by_hand(one, lambda z, at: (w[at] * kl(q[at], z[:, None])).sum(1)))


@pytest.mark.parametrize("weighting", ["A", "D", "E"])
def test_the_clients_are_one_teacher_by_the_mean_of_their_logits(weighting):
    """FedDF's own rule is A."""
    one = OneRound(distil(weighting=weighting, ensemble="logits", teacher_temperature=1.0, optimiser="sgd", lr=1.0))
    w = weights_by_hand(one, weighting, TRANSFER)
    mean = (w[:, :, None] * one.clients(TRANSFER)).sum(1) / w.sum(1, keepdim=True)
    q = torch.softmax(mean, -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z)))


def test_sinkhorn_e_is_knots_student_on_the_same_predictions():
    one = OneRound(distil(loss=SINKHORN, weighting="E"))
    told = one.clients(TRANSFER)
    sizes = [len(one.population.train[result.client]) for result in one.trained]
    knot = {
        "loss": SINKHORN, "weighting": "E", "normalise": False, "student_temperature": 1.0, "teacher_temperature": 1.0,
        "teachers": ["a", "b", "c"], "shares": [size / sum(sizes) for size in sizes], "points": POINTS,
        "biases": [bias_of(own).tolist() for own in one.clients(RANDOM).unbind(1)],
    }  # fmt: skip
    inputs = ObjectiveInputs(torch.full((32,), -1), dict(zip("abc", told.unbind(1), strict=True)), lambda: told)
    rows, loss = distillation(knot, inputs)
    wanted = by_hand(one, lambda z, at: loss(z, {name: own[at] for name, own in rows.items()}))
    close(one.state["weights"], wanted)
    assert (wanted - one.averaged["weights"]).abs().max() > 0.01


def held_by_hand(one, share=0.25):
    """Rows of the transfer set that are trained on, and those that are held out."""
    order = torch.randperm(len(TRANSFER), generator=generator(3, "transfer valid"))
    count = int(share * len(TRANSFER))
    return TRANSFER[order[count:].sort().values], TRANSFER[order[:count].sort().values]


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize(("valid", "patience"), [(0.0, 1000), (0.25, 1000), (0.25, 8)])
def test_the_rate_falls_by_a_cosine_and_a_round_ends_when_held_out_examples_say_so(optimiser, valid, patience):
    lr = {"adamw": 0.3, "sgd": 3.0}[optimiser]
    spec = distil(ensemble="logits", schedule="cosine", valid=valid, check=4, patience=patience, epochs=6, lr=lr,
                  optimiser=optimiser)  # fmt: skip
    one = OneRound(spec)
    train, held = held_by_hand(one, valid)
    told = {"train": one.clients(train), "held": one.clients(held)}
    q, aside = (torch.softmax(logits.mean(1), -1) for logits in told.values())
    weights = one.averaged["weights"].clone().requires_grad_()
    kind = {"adamw": functools.partial(torch.optim.AdamW, weight_decay=0.0), "sgd": torch.optim.SGD}[optimiser]
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
                best = min(checked, key=lambda found: float(found[0]))
                ended = step % 4 == 0 and step - best[1] >= patience
    assert one.row["distil_steps"] == step
    close(one.state["weights"], best[2] if valid else weights.detach(), 5e-5)
    if valid and optimiser == "adamw":  # SGD comes nearer with every step: the mean of linear models is one
        assert (step < last) is (patience == 8) and best[1] < step


def test_every_choice_ends_elsewhere():
    choices = [distil(weighting=w) for w in "ADUE"] + [distil(ensemble="logits"), distil(teacher_temperature=3.0)]
    choices += [distil(schedule="cosine"), distil(valid=0.3, check=2)]
    choices += [distil(loss=SINKHORN), distil(student_temperature=3.0), distil(epochs=1), distil(normalise=True)]
    sgd = {"optimiser": "sgd", "lr": 0.5}  # of Adam the scale of the loss is no choice
    found = [OneRound(dataclasses.replace(spec, **sgd)).state["weights"] for spec in choices]
    for number, own in enumerate(found):
        for other in found[number + 1 :]:
            assert (own - other).abs().max() > 1e-6, number


def test_what_is_said_of_a_round():
    one = OneRound(distil(lr=0.5))
    labels = one.world.engine.test.labels[:40]
    right = [(one.logits(s["weights"], torch.arange(40)).argmax(1) == labels).double().mean() for s in
             (one.averaged, one.state)]  # fmt: skip
    assert one.row["distil_before"] == pytest.approx(right[0]) and one.row["distil_after"] == pytest.approx(right[1])
    assert one.row["distil_steps"] == 2 * 7 and one.row["distil_loss"] > 0
    assert one.row["distil_before"] != one.row["distil_after"] and one.row["distil_tested"] == 40
    unmeasured = OneRound(distil(lr=0.5), evaluate_every=3)
    assert set(unmeasured.row) == {"distil_loss", "distil_steps"}
    assert torch.equal(unmeasured.state["weights"], one.state["weights"])


@pytest.mark.parametrize(("after", "every", "wanted"), [(0, 1, [0, 1, 2, 3]), (2, 1, [2, 3]), (1, 2, [1, 3])])
def test_rounds_that_distil(after, every, wanted):
    spec = distil(after=after, every=every)
    rounds = [OneRound(spec, round=round) for round in range(4)]
    assert [one.round for one in rounds if one.row] == wanted == [r for r in range(4) if spec.distils(r)]
    for one in rounds:
        assert torch.equal(one.state["weights"], one.averaged["weights"]) is not bool(one.row)


def test_steps_are_batches_of_one_permutation_of_the_transfer_set_after_another():
    spec = distil(steps=10, batch=5)
    one = OneRound(spec)
    assert one.row["distil_steps"] == 10
    drawn = drawn_examples(spec, one.population, 0)
    assert drawn[:32].sort().values.tolist() == TRANSFER.tolist() and len(drawn) == 50
    assert len(drawn[32:].unique()) == 18 and drawn[:18].tolist() != drawn[32:].tolist()
    assert torch.equal(drawn, drawn_examples(spec, one.population, 0))
    assert not torch.equal(drawn, drawn_examples(spec, one.population, 1))
    few = OneRound(distil(steps=2, batch=5, optimiser="sgd"))  # clients are asked about these alone
    rows = drawn_examples(few.hp.distil, few.population, 0).sort().values
    few.hp = dataclasses.replace(few.hp, distil=dataclasses.replace(few.hp.distil, epochs=1))
    assert len(rows) == 10 and few.row["distil_steps"] == 2


@pytest.mark.parametrize("algorithm", ["fedprox", "scaffold"])
def test_other_methods_with_one_global_model_take_it_too(algorithm):
    one = OneRound(distil(), algorithm)
    q = torch.softmax(one.clients(TRANSFER), -1)
    close(one.state["weights"], by_hand(one, lambda z, at: kl(q[at], z[:, None]).sum(1)))
    assert set(one.state) == set(one.averaged)


def test_clusters_side_by_side_are_each_as_it_is_alone():
    spec, groups = distil(weighting="E"), ([0, 1], [2, 3, 4])
    alone = [OneRound(spec, members=members) for members in groups]
    population, engine, hp = alone[0].population, alone[0].world.engine, alone[0].hp
    method = per_cluster(METHODS["fedavg"], [one.population for one in alone])
    state = method.init(hp, population)
    requests = method.plan(hp, state, population, 0)
    trained = engine.train(requests)
    state, _ = method.fold(hp, state, population, 0, requests, trained)
    state, row = run_exchange(method, hp, population, engine, 0, state, trained)
    for number, one in enumerate(alone):
        assert torch.equal(cluster_state(state, number)["weights"], one.state["weights"])
    assert row == {"exchanged": [one.row for one in alone]}
    assert [one.row["distil_tested"] for one in alone] == [8, 12]


# ----------------------------------------------------------------------------------------------------- the examples


def setup_of(tmp_path, words):
    (job,) = compose_jobs([*words, f"paths.out={tmp_path}"], None)
    context = RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, lambda _: None)
    return make_setup(context)


def test_transfer_images_are_at_no_client_and_have_no_labels(tmp_path):
    words = replaced(TINY_IMAGES, "method=feddf_sinkhorn_e", "method.distil.bias.images=30")
    made = setup_of(tmp_path, words)
    server = made.population.server
    clients = torch.cat(made.population.train)
    everything = torch.cat([clients, server.transfer, server.random])
    assert everything.sort().values.tolist() == list(range(330)) and len(server.transfer) == 60
    assert set(made.data.labels[server.transfer].tolist()) == {-1} == set(made.data.labels[server.random].tolist())
    truth = torch.from_numpy(made.task.train.labels)
    assert torch.equal(made.data.labels[clients], truth[clients])
    assert torch.equal(made.data.pixels[:300], torch.from_numpy(made.task.train.pixels))
    shares = torch.bincount(truth[server.transfer], minlength=10) / torch.bincount(truth, minlength=10)
    assert (shares - 0.2).abs().max() < 0.03  # stratified
    assert server.test.tolist() == list(range(len(made.test.labels))) and made.held_out == 60
    again, other = setup_of(tmp_path, words), setup_of(tmp_path, [*words, "seed=1"])
    assert torch.equal(again.population.server.transfer, server.transfer)
    assert torch.equal(again.data.pixels, made.data.pixels)
    assert not torch.equal(other.population.server.transfer, server.transfer)
    assert not torch.equal(other.data.pixels[300:], made.data.pixels[300:])
    assert any("60 of 300 training examples are at no client, unlabelled" in note for note in made.notes)


def test_classes_at_the_leaves_of_a_tree_choose_the_solver_of_trees():
    """Newton's is made for few classes: of 62 a round would take minutes."""
    words = ["task=femnist", "method=feddf_sinkhorn_e"]
    for more, solver in (
        ([], "tree"),
        (["task.geometry=superclasses"], "tree"),
        (["method.distil.loss.solver=newton"], "newton"),
    ):
        (job,) = compose_jobs([*words, *more], None)
        assert job.method.distil.loss["solver"] == solver


def test_without_a_server_that_distils_the_clients_are_the_same(tmp_path):
    """So that FedAvg and FedDF can be compared."""
    feddf, fedavg = (
        setup_of(tmp_path, [*TINY_IMAGES, f"method={name}", "partition.transfer=0.3"]) for name in ("feddf", "fedavg")
    )
    assert [a.tolist() for a in feddf.population.train] == [b.tolist() for b in fedavg.population.train]
    assert fedavg.population.server is None and fedavg.held_out == feddf.held_out == 90
    plain = setup_of(tmp_path, TINY_IMAGES)
    assert sum(map(len, plain.population.train)) == 300 and plain.held_out == 0


def test_texts_are_distilled_on_the_transfer_set_of_their_task(tmp_path):
    small = ["method=feddf_sinkhorn_e", "method.distil.bias.texts=7", "method.distil.bias.tokens=9"]
    made = setup_of(tmp_path, [*TINY_TEXTS, *small])
    server, texts = made.population.server, made.data.texts
    (own,) = (data for data in made.task.whole.datasets.values() if data.role == "transfer")
    count = len(made.task.train)
    assert sum(map(len, made.population.train)) == count and made.held_out == 0
    assert server.transfer.tolist() == list(range(count, count + len(own.splits["train"])))
    assert server.random.tolist() == list(range(len(texts) - 7, len(texts)))
    assert set(made.data.labels[count:].tolist()) == {-1} and -1 not in made.data.labels[:count]
    alone = setup_of(tmp_path, [*TINY_TEXTS, "method=fedavg"]).data.texts
    batch, before = texts.batch(torch.arange(count)), alone.batch(torch.arange(count))
    assert all(torch.equal(batch[name], before[name]) for name in batch)
    assert int(texts.lengths[server.random].min()) > 2 and len(texts.ids) == int(texts.offsets[-1])


# ------------------------------------------------------------------------------------------------------- whole runs

TINY_FEDDF = replaced(
    TINY_IMAGES, "method=feddf_sinkhorn_e", "training.lr=0.1", "method.distil.bias.images=30", "method.distil.batch=16",
    "method.distil.lr=0.01", "method.distil.loss.solver=newton", "method.distil.loss.epsilon=0.5",
    "task.geometry=onehot",
)  # fmt: skip


def records(out: Path):
    """(result, rows, weights) without times."""
    (path,) = out.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    rows = [json.loads(line) for line in (path.parent / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return result, rows, load_file(path.parent / "model.safetensors")


def run(out: Path, *words: str):
    assert main([*words, f"paths.out={out}"]) == 0
    return records(out)


def test_engines_agree_and_seeds_decide(tmp_path, capsys):
    exact = [*TINY_FEDDF, "hardware.precision=float64"]
    lean = run(tmp_path / "lean", *exact, "hardware.engine=lean")
    assert "distilled in 3 rounds: accuracy " in capsys.readouterr().out
    result, rows, weights = lean
    assert all(is_round(row, number) for number, row in enumerate(rows)) and all("distil_after" in row for row in rows)
    assert all(row["distil_after"] == pytest.approx(row["accuracy"]) for row in rows)
    gains = [row["distil_after"] - row["distil_before"] for row in rows]
    assert result["distilled"] == {
        "rounds": 3, "loss": rows[-1]["distil_loss"], "before": rows[-1]["distil_before"],
        "after": rows[-1]["distil_after"], "gain": pytest.approx(sum(gains) / 3),
    }  # fmt: skip
    assert result["datasets"]["train"] == 240
    for engine in ("loop", "stacked"):
        _, other, found = run(tmp_path / engine, *exact, f"hardware.engine={engine}")
        assert [row["distil_loss"] for row in other] == pytest.approx([row["distil_loss"] for row in rows], abs=1e-9)
        assert all((found[name] - weights[name]).abs().max() < 1e-9 for name in weights)
    assert run(tmp_path / "again", *exact, "hardware.engine=lean", "seed=1")[1] != rows


@pytest.mark.parametrize(
    "course", [["schedule=cosine"], ["valid=0.3", "check=2", "patience=4"]], ids=["cosine", "valid"]
)
def test_engines_agree_on_the_course_of_a_round(course, tmp_path):
    small = [*course, "optimiser=sgd", "lr=12.0", "epochs=9", "batch=16"]
    words = replaced(TINY_IMAGES, "method=feddf", "training.rounds=2", "training.lr=0.1", "hardware.precision=float64")
    words += [f"method.distil.{word}" for word in small]
    _, rows, weights = run(tmp_path / "lean", *words, "hardware.engine=lean")
    assert any(row["distil_steps"] < 9 * 3 for row in rows) is ("valid=0.3" in course)
    for engine in ("loop", "stacked"):
        _, other, found = run(tmp_path / engine, *words, f"hardware.engine={engine}")
        assert [row["distil_steps"] for row in other] == [row["distil_steps"] for row in rows]
        assert all((found[name] - weights[name]).abs().max() < 1e-9 for name in weights)


def test_a_constant_rate_to_the_end_is_the_run_that_it_was():
    (job,) = compose_jobs([*TINY_IMAGES, "method=feddf"], None)
    new = ("schedule", "valid", "check", "patience")
    distil = {key: value for key, value in job.config["method"]["distil"].items() if key not in new}
    assert run_id({**job.config, "method": {**job.config["method"], "distil": distil}}) == job.run_id
    for word in ("schedule=cosine", "valid=0.1"):
        (other,) = compose_jobs([*TINY_IMAGES, "method=feddf", f"method.distil.{word}"], None)
        assert other.run_id != job.run_id
    (other,) = compose_jobs([*TINY_IMAGES, "method=feddf", "method.distil.check=7"], None)
    assert other.run_id == job.run_id  # nothing is checked


def test_clusters_distil_each_on_their_own_clients(tmp_path):
    """One cluster of all is the run without clusters; with two, each has a server of its own."""
    spec = [f"method.distil.{name}" for name in ("batch=16", "lr=0.01")]
    pairs = ["partition=pairs_of_five", "partition.clients=6", "training.small_clients=allow"]
    small = [word for word in replaced(TINY_IMAGES, "training.lr=0.1") if not word.startswith("partition.")]
    clustered = [*small, *pairs, *spec, "method=clustered_feddf"]
    one = run(tmp_path / "one", *clustered, "method.clustering.graph=none")
    alone = run(tmp_path / "alone", *small, *pairs, *spec, "method=feddf", "method.aggregation=uniform")
    assert [row["distil_loss"] for row in one[1]] == [row["distil_loss"] for row in alone[1]]
    assert all(torch.equal(one[2][f"cluster/0/{name}"], value) for name, value in alone[2].items())
    _, rows, _ = run(tmp_path / "two", *clustered, "method.clustering.clusters=2", "training.evaluate_every=2")
    assert ["distil_after" in row for row in rows] == [False, True, True]
    assert all(is_round(row, number) for number, row in enumerate(rows)) and len(rows) == 3
    assert rows[2]["distil_steps"] == 2 * one[1][2]["distil_steps"]
    assert rows[2]["distil_after"] == pytest.approx(rows[2]["accuracy"])


def test_kill_9_and_the_same_command_again(tmp_path):
    longer = replaced(TINY_IMAGES, "training.rounds=40", "method=feddf", "method.distil.weighting=E", "training.lr=0.1")
    alone = run(tmp_path / "alone", *longer)
    killed = Forked(*longer, f"paths.out={tmp_path / 'k'}", until=functools.partial(reached, tmp_path / "k", 8))
    assert killed.wait() == -signal.SIGKILL, killed.said
    assert not list((tmp_path / "k").glob("*/*/*/result.json"))
    again = run(tmp_path / "k", *longer)
    assert again[1] == alone[1]
    assert all(torch.equal(again[2][name], value) for name, value in alone[2].items())


def test_a_server_that_diverges_is_named(tmp_path, capsys):
    assert main([*TINY_FEDDF, "method.distil.optimiser=sgd", "method.distil.lr=1e30", f"paths.out={tmp_path}"]) == 1
    assert "diverged in round 0 at the server: its weights are not finite; a smaller method.distil.lr would" in (
        " ".join(capsys.readouterr().err.split())
    )


BAD = [
    (["partition.transfer=0"], "partition.transfer: 0.0 is not between 0 and 1"),
    (["partition.transfer=1"], "partition.transfer: 1.0 is not between 0 and 1"),
    (["partition.transfer=0.999"], "partition.transfer: "),
    (["partition.transfer=0.97", "partition=iid", "partition.clients=20"], "partition.clients: 20 are more than the"),
    (["partition.server=0.2"], "partition.server: method=feddf leaves the clients all training images"),
    (["method.distil.loss.name=entropi"], "method.distil.loss.name: no loss 'entropi' (did you mean 'entropy'?)"),
    (["method.distil.loss.form=kll"], "method.distil.loss.form: 'kll' is not one of"),
    (["~method.distil.loss.name"], "method.distil.loss.name: is not set"),
    (["method.distil.weighting=F"], "method.distil.weighting: no weighting 'F'"),
    (["method.distil.ensemble=all"], "method.distil.ensemble: 'all' is not one of logits, each"),
    (["method.distil.momentum=0.5"], "method.distil.momentum: 0.5 is of sgd; adamw has none"),
    (["method.distil.lr=0"], "method.distil.lr: 0.0 is not above 0"),
    (["method.distil.valid=1"], "method.distil.valid: 1.0 is not in [0, 1)"),
    (["method.distil.valid=0.001"], "method.distil.valid: 0.001 of 60 transfer examples is none; 0, or more, is right"),
    (["method.distil.schedule=step"], "method.distil.schedule: 'step' is not one of constant, cosine"),
    (["method.distil.epochs=0"], "method.distil.epochs: 0 is not at least 1"),
    (["method.distil.steps=0"], "method.distil.steps: 0 is not at least 1"),
    (["method.distil.every=0"], "method.distil.every: 0 is not at least 1"),
    (["method.algorithm=fedper"], "method.distil: is of methods with one global model; with algorithm=fedper"),
    (["task=erc", "training=texts", "partition=natural", "partition.transfer=0.2"], "partition.transfer: task=erc has"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_that_names_the_key(arguments, said, tmp_path, capsys):
    small = [word for word in TINY_IMAGES if not any("partition=" in a for a in arguments) or "partition." not in word]
    if "task=erc" in arguments:
        small = ["hardware.workers=1"]
    assert main([*small, "method=feddf", *arguments, f"paths.out={tmp_path / 'out'}"]) == 2
    errors = capsys.readouterr().err
    complaint = [line for line in errors.splitlines() if line.startswith("knot-runner: ")]
    assert len(complaint) == 1 and said in complaint[0] and "Traceback" not in errors, errors
    assert not list((tmp_path / "out").rglob("*.json*"))


GOOD = {"distil_loss": 0.5, "distil_steps": 3, "distil_tested": 9, "distil_before": 0.5, "distil_after": 0.6}


@pytest.mark.parametrize("broken", [
    {"distil_loss": float("nan")}, {"distil_loss": None}, {"distil_steps": 0}, {"distil_steps": 1.5},
    {"distil_after": 1.5}, {"distil_before": -0.1}, {"distil_before": None}, {"distil_loss": True},
    {"distil_tested": 0},
])  # fmt: skip
def test_a_row_that_cannot_be_is_found(broken):
    plain = {"round": 0, "participants": [0], "before": [0.5], "after": [None]}
    assert is_round(plain | GOOD, 0) and is_round(plain | {"distil_loss": -1e-9, "distil_steps": 3}, 0)
    assert not is_round(plain | GOOD | broken, 0)
    for key in GOOD:
        assert not is_round(plain | {name: value for name, value in GOOD.items() if name != key}, 0)


@pytest.mark.parametrize("preset", ["feddf_femnist", "feddf_cifar10"])
def test_presets_on_tiny_runs(preset, tmp_path, capsys):
    """Table and claims; the clients of all methods are the same."""
    shape, model = ("[1,8,8]", "model.hidden=[8]") if preset == "feddf_femnist" else ("[3,16,16]", "training.epochs=1")
    small = ["task.source=embedded", "task.limit=200", f"task.shape={shape}", model, "training.rounds=1", "seed=0"]
    small += ["partition.clients=4", "training.participants=2", "hardware.workers=1", f"paths.out={tmp_path}"]
    assert main([f"experiment={preset}", "partition.alpha=1", *small]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("fedavg", "feddf", "feddf_entropy_a", "feddf_sinkhorn_e"))
    dealt = {path.read_text() for path in tmp_path.glob("*/*/*/partition.json")}
    assert len(dealt) == 1 and len(list(tmp_path.glob("*/*/*/result.json"))) == 4
    assert main(["claims", preset, "partition.alpha=1", *small]) == 0
    assert "FedDF ends more accurate than FedAvg" in capsys.readouterr().out
