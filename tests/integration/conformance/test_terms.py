"""The public check of loss terms over the package's table, a plug-in's term, and terms with one mistake each."""

import pytest
import torch

import knot_runner as kr
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.methods.terms import PktTermSettings, SimilarityTermSettings
from knot_runner.testing import check_term
from tests.changed_settings import terms_of
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401

#: Terms that promise 0 for a student equal to its teacher; of sinkhorn that is true of its limit.
ZERO = {"kd", "dkd", "hint", "at", "sp", "rkd", "pkt"}
OPTIONS = [
    *((name, {}) for name in kr.TERMS), ("ce", {"label_smoothing": 0.3}), ("kd", {"mean": "logits"}),
    ("hint", {"adapter": "always"}), ("hint", {"form": "l1"}), ("at", {"p": 3.5}), ("rkd", {"angle": 0.0}),
    ("sinkhorn", {"epsilon": 0.5, "tolerance": 1e-9}), ("sinkhorn", {"solver": "exact"}), ("crd", {"negatives": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_term_of_the_package_conforms(name, options):
    settings = vars(terms_of({name: options | {"weight": "auto"}})[name])
    assert settings.pop("weight") == "auto"
    check_term(name, zero_when_equal=name in ZERO and "adapter" not in options, **settings)


@pytest.mark.usefixtures("tables_restored")
def test_term_of_a_plug_in_conforms():
    load_plugins([str(EXAMPLES / "own_term.py")])
    check_term("logits", zero_when_equal=True)
    check_term("logits", centered=False)


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


WRONG = {
    "the loss of 1 examples": of_logits(lambda own, *_: own.square()),
    "examples is tensor": of_logits(lambda own, *_: own.mean(1)),
    "another loss the second time": of_logits(lambda own, *_: own.square().mean(1) + torch.rand(()).to(own)),
    "does not read all": of_features(lambda tap: 0 * tap.sum()),
    "not the change": of_logits(lambda own, *_: (own.detach() * own).square().mean(1)),
    "steep": of_features(lambda tap: torch.nn.functional.normalize(tap, dim=1).sum(1).sigmoid()),
    "reads_labels": of_logits(lambda own, _, batch: own.square().mean(1) * (batch.labels >= 0)),
    "order": of_logits(lambda own, *_: own[0].square().sum()),
    "count as one": of_logits(lambda own, teachers, _: sum((own - one.logits).square().mean(1) for one in teachers)),
    "changes teachers": of_logits(overwrites),
    "not 0": of_logits(lambda own, *_: own.square().mean(1)),
}


@pytest.mark.parametrize("said", WRONG)
def test_check_finds_a_wrong_term(said):
    with pytest.raises(AssertionError, match=said):
        check_term(WRONG[said], zero_when_equal=said == "not 0")
