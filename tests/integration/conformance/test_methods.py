"""Federated algorithms, alone and with what goes on top of them, keep the contract of :mod:`knot_runner.testing`."""

import itertools
import math
from dataclasses import replace

import pytest

from knot_runner import METHODS, UserError, compose
from knot_runner import testing as checks
from knot_runner.config.settings.methods.algorithms import FEDERATED_ALGORITHMS
from tests.accounted import accounted
from tests.of_papers import of_papers
from tests.tiny import EXAMPLES, TINY_IMAGES, replaced

PERSONAL = [f"method.personalization.{setting}" for setting in ("epochs=2", "checkpoints=2", "lr=0.05")]
KIND = "+base/personalization@method.personalization"
OTHER_SET = ["method.server_distillation.weighting=E", "transfer=usps", "transfer.max_examples=60"]
BATCH = "method.server_distillation.batch_size=16"
DISTILLED = ["+base@method=feddf", "+base/loss@method.server_distillation.loss=entropy", BATCH]
#: What goes on top -> the words that put it there.
ON_TOP = {
    "chilled": ["method.temperature=0.5"],
    "clustered on a fleet, fine-tuned": [
        "+base/clustering@method.clustering=otdd", "method.aggregation=uniform", "fleet=phones_partial",
        f"{KIND}=finetune", *PERSONAL,
    ],
    "asynchronous, soup": [
        "fleet=phones_async", "fleet.buffer=2", f"{KIND}=soup", *PERSONAL, "method.personalization.at=all",
    ],
    "private, distilled": ["method.aggregation=uniform", "privacy=user_level", "training.clients_per_round=2"],
}  # fmt: skip
#: Algorithms without a model of the server that it could distill into; of fedmd that is the method itself.
NOT_DISTILLED = ("feddistill", "local")
#: Further runs that are resumed.
RESUMED = {
    "cossim": [f"{KIND}=cossim", "method.personalization.rounds=2", "method.personalization.lr=0.05"],
    "transfer_matrix": [f"{KIND}=transfer_matrix", *PERSONAL, "method.personalization.steps=4"],
    "landscape": [f"{KIND}=landscape", "method.personalization.lr=0.05", "method.personalization.grid=3"],
    "feddf of another data set": ["method=feddf", *OTHER_SET],
}
#: Small networks, which engines compute in ways of their own.
NETWORKS = {"wrn_16_1": ["model.depth=10"], "vgg8": ["model.stages=[[4],[8,8]]", "model.pools=2"]}


def words_of(top, algorithm):
    """``algorithm`` with ``top``."""
    words = [f"method={algorithm}", *ON_TOP[top]]
    if top == "private, distilled" and algorithm not in (*NOT_DISTILLED, "fedmd"):
        words += [*DISTILLED, "partition.transfer=0.2"]
    if algorithm == "fedrep":
        words.append("training.local_epochs=5")  # four are of the head
    if algorithm == "fedgen":
        words += [f"method.generator.{word}" for word in ("steps=5", "batch_size=16", "hidden=16")]
    if algorithm == "fedmd":
        # a client alone is its own teacher: Adam would make large what rounding leaves of that
        words += ["partition.transfer=0.2", BATCH, "method.server_distillation.optimizer=sgd"]
    return words


@pytest.mark.parametrize("top", ON_TOP)
def test_everything_composes_with_every_algorithm(top):
    assert len(FEDERATED_ALGORITHMS) == 13
    for algorithm in FEDERATED_ALGORITHMS:
        words = replaced(TINY_IMAGES, *words_of(top, algorithm))
        if (top, algorithm) == ("private, distilled", "local"):
            with pytest.raises(UserError, match="^privacy=user_level and method=local cannot be combined"):
                compose(words)
        else:
            (job,) = compose(words)
            assert job.method.algorithm == algorithm


@pytest.mark.parametrize("algorithm", NOT_DISTILLED)
def test_algorithms_without_a_server_model_refuse_its_distillation(algorithm):
    with pytest.raises(UserError, match=f"^method.server_distillation: not a setting of method.algorithm={algorithm} "):
        compose(replaced(TINY_IMAGES, f"method={algorithm}", *DISTILLED, "partition.transfer=0.2"))


@pytest.mark.thorough
@pytest.mark.parametrize("half", range(2))
def test_algorithms_keep_the_contract(half, tmp_path):
    for algorithm in list(FEDERATED_ALGORITHMS)[half::2]:
        checks.check_method(words_of("chilled", algorithm), tmp_path / algorithm)


def test_plugin_keeps_the_contract(tmp_path):
    words = ["method=moon", f"--config-dir={EXAMPLES / 'conf'}", f"plugins=['{EXAMPLES / 'moon.py'}']"]
    checks.check_method(words, tmp_path)


@pytest.mark.parametrize(("top", "algorithm"), [
    ("clustered on a fleet, fine-tuned", "scaffold"), ("asynchronous, soup", "apfl"), ("asynchronous, soup", "fedgen"),
    pytest.param("private, distilled", "fedmd", marks=accounted),
])  # fmt: skip
def test_combinations_resume_after_every_commit(top, algorithm, tmp_path):
    checks.check_resumption([*words_of(top, algorithm), "training.rounds=2"], tmp_path)


@pytest.mark.parametrize("network", NETWORKS)
def test_engines_agree_on_every_network(network, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SMALL_RUN", [word for word in checks.SMALL_RUN if "model." not in word])
    words = [f"model={network}", *NETWORKS[network], "training.rounds=1", "training.local_epochs=1"]
    checks.check_engines_agree(words, tmp_path)


@pytest.mark.parametrize("name", of_papers(RESUMED))
def test_run_resumes_after_every_commit(name, tmp_path):
    checks.check_resumption([*RESUMED[name], "training.rounds=2"], tmp_path)


CALLS = itertools.count(1)


def moved_by_call(*arguments):
    """A fold that depends on how often this process has called it."""
    state, row = METHODS["fedprox"].fold(*arguments)
    return {**state, "weights": state["weights"] * (1 + 1e-3 * next(CALLS))}, row


def beyond_the_mean(config, state, federation, round, mean, share):
    """A fold that moves the model by more than the mean of the clipped updates."""
    doubled = {name: 2 * part for name, part in mean.items()}
    return METHODS["fedprox"].fold(config, state, federation, round, doubled, share)


def by_degrees_of_freedom(config, state, federation, round, mean, share):
    """A fold that divides by the number of clients less one."""
    after, row = METHODS["fedprox"].fold(config, state, federation, round, mean, share)
    return {**after, "weights": after["weights"] / (share * len(federation) - 1)}, row


def moved_by_plan(config, state, *more):
    """A plan that writes into the state."""
    state["weights"].mul_(0.9)
    return METHODS["fedprox"].plan(config, state, *more)


def by_variance_of_labels(config, state, federation, *more):
    """A plan that divides a client's learning rate by the variance of its labels."""
    requests = []
    for request in METHODS["fedprox"].plan(config, state, federation, *more):
        variance = float(federation.train_labels[request.rows].double().var())
        lr = request.recipe.lr / variance if variance else math.inf
        requests.append(replace(request, recipe=replace(request.recipe, lr=lr)))
    return requests


@pytest.mark.parametrize(("wrong", "check", "message"), [
    ({"plan": moved_by_plan}, checks.check_empty_rounds, "has no participants, but changed .*weights"),
    ({"plan": by_variance_of_labels}, checks.check_clients_of_one_class, "the run has diverged"),
    ({"fold": moved_by_call}, checks.check_workers_agree, "two workers and one record different result, rows"),
    ({"fold": moved_by_call}, checks.check_resumption, "uninterrupted run record different result, rows"),
    ({"fold": moved_by_call}, checks.check_engines_agree, "lean and loop: "),
    ({"fold": beyond_the_mean}, checks.check_clipping, "the global model moves by"),
    ({"fold": by_degrees_of_freedom}, checks.check_one_client, "the run has diverged"),
])  # fmt: skip
def test_broken_method_is_reported(wrong, check, message, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS.data, "fedavg", replace(METHODS["fedprox"], **wrong))
    with pytest.raises(AssertionError, match=message):
        check(["method=fedavg"], tmp_path)


def test_clipping_check_allows_momentum(tmp_path, monkeypatch):
    words = ["method=fedavg", "method.server.optimizer=momentum"]
    checks.check_clipping(words, tmp_path / "right")
    monkeypatch.setitem(METHODS.data, "fedavg", replace(METHODS["fedprox"], fold=beyond_the_mean))
    with pytest.raises(AssertionError, match="the global model moves by"):
        checks.check_clipping(words, tmp_path / "wrong")
