"""Every engine of the package, and one of a plug-in, trains clients and infers as the loop does."""

from __future__ import annotations

import pytest

from knot_runner.config.settings.groups import ENGINES
from knot_runner.engine.federated.choose import make_loop
from knot_runner.testing import check_engine
from tests.unit.engines.native_cases import needs_compiler


@pytest.mark.machine
@pytest.mark.parametrize("name", ["lean", "stacked", pytest.param("native", marks=needs_compiler)])
def test_engine_conforms(name):
    check_engine(name, [1] if name == "stacked" else [1, 2])  # which has no workers


def test_engine_checks_cover_every_engine():
    assert {*ENGINES} <= {"loop", "lean", "stacked", "ray", "native"}


def moved(requests, answers):
    """A millionth more of the weights of one client."""
    for answer in answers:
        answer.weights.mul_(1 + 1e-6 * (answer.client == 7))
    return answers


def halved(requests, answers):
    for request in requests:
        request.model.weights.mul_(0.5)
    return answers


def first_alone(requests, answers):
    """Of the first request, whichever that is, a rounding error more."""
    for answer in answers[:1]:
        answer.weights.mul_(1 + 1e-12)
    return answers


#: What an engine of a plug-in makes of the loop's answers, and what is said of it.
ENGINES_OF_ONES_OWN = {
    "the loop": ("train", lambda requests, answers: answers, ""),
    "inexact": ("train", moved, "and loop: plain SGD, client 7: weights: Tensor-likes are not close!"),
    "depends on the order": ("train", first_alone, "in reverse: plain SGD, client 0: weights: "),
    "inexact logits": ("logits", lambda _, answers: [answer * 1.001 for answer in answers], "0: logits: "),
    "writes into requests": ("logits", halved, "changes its requests"),
    "answers the unasked": ("logits", lambda _, answers: answers or [0], "returns results that were not requested"),
}


@pytest.mark.parametrize("kind", ENGINES_OF_ONES_OWN)
def test_check_engine_accepts_or_reports_plugin_engine(kind, monkeypatch):
    method, change, said = ENGINES_OF_ONES_OWN[kind]

    def own(inputs):
        engine = make_loop(inputs)
        answer = getattr(engine, method)
        setattr(engine, method, lambda requests: change(requests, answer(requests)))
        return engine

    monkeypatch.setitem(ENGINES.data, "own", own)
    monkeypatch.setattr("knot_runner.testing.engines._RECIPES", {"plain SGD": {}})
    if not said:
        check_engine("own", workers=[1])
        return
    with pytest.raises(AssertionError, match=said):
        check_engine("own", workers=[1])
