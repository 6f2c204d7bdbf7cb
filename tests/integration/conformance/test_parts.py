"""Metrics, loss terms, weightings and trackers of the package and of plug-ins keep the contract; what breaks it is
reported."""

import dataclasses

import pytest
import torch

import knot_runner as kr
from knot_runner import METRICS, TRACKERS, Metric
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.methods.terms import PktTermSettings, SimilarityTermSettings
from knot_runner.methods.weighting import needs_bias
from knot_runner.testing import check_metric, check_term, check_tracker, check_weighting
from tests.changed_settings import terms_of
from tests.fake_trackers import fake_tensorboard, fake_wandb
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401

pytestmark = pytest.mark.usefixtures("tables_restored")
F1 = METRICS["f1"]
FAKES = {"wandb": fake_wandb, "tensorboard": fake_tensorboard}
#: Terms that promise 0 for a student equal to its teacher; of sinkhorn that is true of its limit.
ZERO = {"kd", "dkd", "hint", "at", "sp", "rkd", "pkt"}
OPTIONS = [
    *((name, {}) for name in kr.TERMS), ("ce", {"label_smoothing": 0.3}), ("kd", {"mean": "logits"}),
    ("hint", {"adapter": "always"}), ("hint", {"form": "l1"}), ("at", {"p": 3.5}), ("rkd", {"angle": 0.0}),
    ("sinkhorn", {"epsilon": 0.5, "tolerance": 1e-9}), ("sinkhorn", {"solver": "exact"}), ("crd", {"negatives": 3}),
]  # fmt: skip


#: Plug-in -> how its part is checked.
PLUGINS = {
    "own_metric.py": lambda path: check_metric("balanced_accuracy", examples=25, classes=10),
    "own_term.py": lambda path: (check_term("logits", zero_when_equal=True), check_term("logits", centered=False)),
    "own_weighting.py": lambda path: check_weighting("M"),
    "own_tracker.py": lambda path: check_tracker("lines", path, {"file": "lines.txt"}),
}


@pytest.mark.parametrize("file", PLUGINS)
def test_part_of_a_plugin_keeps_its_contract(file, tmp_path):
    load_plugins([str(EXAMPLES / file)])
    PLUGINS[file](tmp_path)


@pytest.mark.parametrize("name", METRICS)
def test_metric_keeps_its_contract(name):
    check_metric(name)


@pytest.mark.parametrize("name", kr.WEIGHTINGS)
def test_weighting_keeps_its_contract(name):
    check_weighting(name)
    check_weighting(kr.WEIGHTINGS[name])


def test_biases_are_found_for_any_weighting_that_may_read_them() -> None:
    assert [name for name in (*kr.WEIGHTINGS, "of a plug-in") if needs_bias(name)] == ["E", "of a plug-in"]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_term_keeps_its_contract(name, options):
    settings = vars(terms_of({name: options | {"weight": "auto"}})[name])
    assert settings.pop("weight") == "auto"
    check_term(name, zero_when_equal=name in ZERO and "adapter" not in options, **settings)


@pytest.mark.parametrize("name", TRACKERS)
def test_tracker_keeps_its_contract(name, tmp_path, monkeypatch):
    FAKES[name](monkeypatch)
    check_tracker(name, tmp_path)


def batch_share(sums):
    values = F1.of_sums(sums)
    return values * (1 if len(values) == 1 else 0.5)


def share_of_the_largest(test):
    """A value of an example that depends on the others."""
    distances = METRICS["sd"].of_examples(test)
    return distances / (1 + distances.max())


def of_logits(function):
    return kr.Term(
        SimilarityTermSettings, lambda *_: lambda student, teachers, batch: function(student.logits, teachers, batch)
    )


def of_features(function):
    return kr.Term(
        PktTermSettings, lambda *_: lambda student, teachers, batch: function(student.taps["tap 0"]), taps="features"
    )


def overwrites(logits, teachers, batch):
    teachers[0].logits.zero_()
    return logits.square().mean(1)


WRONG_TERMS = {
    "the loss of 1 examples": of_logits(lambda own, *_: own.square()),
    "examples is tensor": of_logits(lambda own, *_: own.mean(1)),
    "differs between two calls": of_logits(lambda own, *_: own.square().mean(1) + torch.rand(()).to(own)),
    "does not read all": of_features(lambda tap: 0 * tap.sum()),
    "not match the change": of_logits(lambda own, *_: (own.detach() * own).square().mean(1)),
    "steep": of_features(lambda tap: torch.nn.functional.normalize(tap, dim=1).sum(1).sigmoid()),
    "reads_labels": of_logits(lambda own, _, batch: own.square().mean(1) * (batch.labels >= 0)),
    "order": of_logits(lambda own, *_: own[0].square().sum()),
    "given twice": of_logits(lambda own, teachers, _: sum((own - one.logits).square().mean(1) for one in teachers)),
    "changes the teachers": of_logits(overwrites),
    "not 0": of_logits(lambda own, *_: own.square().mean(1)),
}
WRONG_WEIGHTINGS = {
    "instead of": lambda q, shares, biases: q.amax(2).mean(0),
    "negative or not finite": lambda q, shares, biases: q.amax(2) - 0.5,
    "order of the teachers": lambda q, shares, biases: q.amax(2).cumsum(1),
    "other examples": lambda q, shares, biases: q.amax(2) / q.amax((0, 2)),
    "equal teachers": lambda q, shares, biases: q.amax(2).argsort(dim=1).argsort(dim=1) + 1.0,
    "not finite": lambda q, shares, biases: 1 / (q - biases).norm(dim=2),
}
WRONG_METRICS = [
    (Metric("x", "larger"), "better='larger'"), (Metric("x", "higher", scale=0), "scale=0"),
    (Metric("x", "higher", lambda test: None), "is None, not a finite number"),
    (Metric("x", "higher", lambda test: 2.0, top=1.0), "is 2.0, not a finite number from 0 to 1.0"),
    (Metric("x", "higher", lambda test: float(test.labels[0])), "depends on the order"),
    (Metric("x", "lower", lambda test: F1.value(test)), "worse than"),
    (dataclasses.replace(F1, of_sums=lambda sums: sums.hits.sum(1)), "not a finite number from 0 to 1.0"),
    (dataclasses.replace(F1, of_sums=lambda sums: F1.of_sums(sums)[:1]), "on a batch"),
    (dataclasses.replace(METRICS["sd"], of_examples=share_of_the_largest), "of two parts"),
    (dataclasses.replace(F1, of_sums=batch_share), "on a batch"),
]  # fmt: skip
WRONG = [
    *((check_term, term, said) for said, term in WRONG_TERMS.items()),
    *((check_weighting, weighting, said) for said, weighting in WRONG_WEIGHTINGS.items()),
    *((check_metric, metric, said) for metric, said in WRONG_METRICS),
]


@pytest.mark.parametrize(("check", "part", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_check_reports_a_broken_contract(check, part, said):
    with pytest.raises(AssertionError, match=said):
        check(part, **({"zero_when_equal": True} if said == "not 0" else {}))


def test_check_metric_passes_read_only_arrays():
    with pytest.raises(ValueError, match="read-only"):
        check_metric(Metric("x", "higher", lambda test: test.labels.sort()))


def fail_if(condition):
    if condition:
        raise ValueError("no such number")


#: The one method that breaks the contract, and what is reported.
BROKEN = [
    ({"log": lambda self, row, steps: fail_if(None in row.values())}, "in a new run: .*no such number"),
    ({"__init__": lambda self, run: fail_if((run.folder / "1").exists() or (run.folder / "1").touch())},
     "in a resumed run: .*did not start"),
    ({"close": lambda self, failed: fail_if(failed)}, "in a failed run: .*no such number"),
    ({"__init__": lambda self, run: setattr(self, "run", run),
      "summarize": lambda self, values: (self.run.folder / "result.json").write_text("")}, "changes the records"),
]  # fmt: skip


@pytest.mark.parametrize(("methods", "message"), BROKEN)
def test_check_tracker_reports_a_broken_contract(methods, message, tmp_path):
    idle = {name: lambda self, *_: None for name in ("__init__", "log", "summarize", "close")}
    TRACKERS["broken"] = type("Broken", (), idle | methods)
    with pytest.raises(AssertionError, match=message):
        check_tracker("broken", tmp_path)
