"""Metrics, loss terms and weightings of the package and of plug-ins keep the contract; what breaks it is reported."""

import numpy as np
import pytest
import torch

import knot_runner as kr
from knot_runner import METRICS, metrics
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.methods.terms import PktTermSettings, SimilarityTermSettings
from knot_runner.methods.weighting import needs_bias
from knot_runner.metrics import ClassSums, TestSet, class_sums
from tests.changed_settings import terms_of
from tests.distillation_checks import check_term, check_weighting
from tests.tiny import EXAMPLES

#: Terms that promise 0 for a student equal to its teacher; of sinkhorn that is true of its limit.
ZERO = {"kd", "dkd", "hint", "at", "sp", "rkd", "pkt"}
OPTIONS = [
    *((name, {}) for name in kr.TERMS), ("ce", {"label_smoothing": 0.3}), ("kd", {"mean": "logits"}),
    ("hint", {"adapter": "always"}), ("hint", {"form": "l1"}), ("at", {"p": 3.5}), ("rkd", {"angle": 0.0}),
    ("sinkhorn", {"epsilon": 0.5, "tolerance": 1e-9}), ("sinkhorn", {"solver": "exact"}), ("crd", {"negatives": 3}),
]  # fmt: skip


def test_parts_of_plugins_keep_their_contract():
    load_plugins([str(EXAMPLES / f"own_{part}.py") for part in ("term", "weighting")])
    check_term("logits", zero_when_equal=True)
    check_term("logits", centered=False)
    check_weighting("M")


def predicted(logits: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> TestSet:
    return metrics.of_logits(logits, labels, coordinates, temperature=2.0)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.is_of_predictions] + ["plug-in"])
def test_metric_of_predictions_keeps_its_contract(name):
    load_plugins([str(EXAMPLES / "own_metric.py")])
    metric = METRICS["balanced_accuracy" if name == "plug-in" else name]
    draw = np.random.default_rng(0)
    logits, labels, coordinates = draw.normal(size=(60, 4)), draw.integers(4, size=60), draw.normal(size=(4, 2))
    test = predicted(logits, labels, coordinates)
    for array in (logits, test.probabilities, labels, coordinates):
        array.flags.writeable = False
    value = metric.value(test)
    assert 0 <= value <= metric.top
    perfect = metric.value(predicted(1e3 * np.eye(4)[labels], labels, coordinates))
    assert perfect >= value if metric.better == "higher" else perfect <= value

    def part(rows):
        return predicted(logits[rows], labels[rows], coordinates)

    assert metric.value(part(draw.permutation(60))) == pytest.approx(value)
    resamples = [part(rows) for rows in (labels == labels[0], *draw.integers(60, size=(8, 60)))]
    fields = zip(*(vars(class_sums(metric, resample)).values() for resample in resamples), strict=True)
    batch = ClassSums(*(None if parts[0] is None else np.concatenate(parts) for parts in fields))
    np.testing.assert_allclose(metric.of_sums(batch), [metric.value(resample) for resample in resamples], rtol=1e-9)
    halves = class_sums(metric, part(slice(20))) + class_sums(metric, part(slice(20, None)))
    np.testing.assert_allclose(metric.of_sums(halves), [value], rtol=1e-9)


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
WRONG = [
    *((check_term, term, said) for said, term in WRONG_TERMS.items()),
    *((check_weighting, weighting, said) for said, weighting in WRONG_WEIGHTINGS.items()),
]


@pytest.mark.parametrize(("check", "part", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_check_reports_a_broken_contract(check, part, said):
    with pytest.raises(AssertionError, match=said):
        check(part, **({"zero_when_equal": True} if said == "not 0" else {}))
