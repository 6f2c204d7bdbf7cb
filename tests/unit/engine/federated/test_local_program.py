"""Local programs: every engine gives them to the plain loop, worker processes included."""

import threading
from dataclasses import replace

import pytest
import torch

from knot_runner.engine.federated.cohort import LocalProgram, LocalResult
from tests.unit.engine.federated.cases import MODELS, RECIPES, cohort, made


def pulled(settings, work):
    """Plain training, then a share of the way to a vector; says how far that was, and what the batches were."""
    loss, steps = work.train()
    with torch.no_grad():
        for field, parameter in zip(work.layout.parameters, work.model.parameters(), strict=True):
            to = work.tensors["to"][field.start : field.stop].view(field.shape)
            parameter += settings["share"] * (to - parameter)
    order = torch.cat([positions for positions, _ in work.batches()])
    return LocalResult(loss, steps, {"order": order, "scalar": torch.tensor(settings["share"])})


def broken(settings, work):
    return LocalResult(0.0, 1, {"what": torch.tensor([1.0, float("nan")])})


NETWORK = MODELS["mlp"]


def requests():
    """A cohort, all but the third with a program; and the vector to which those pull."""
    cohort_ = cohort(NETWORK, RECIPES["plain"])
    to = torch.linspace(-1, 1, len(cohort_[0].start.weights), dtype=torch.float64)
    program = LocalProgram(pulled, {"share": 0.25}, {"to": to})
    return [replace(one, program=program) if place != 2 else one for place, one in enumerate(cohort_)], to


@pytest.fixture(scope="module")
def expected():
    return made("loop", NETWORK).train(requests()[0])


def test_local_program_changes_weights_and_returns_kept_values(expected):
    asked, to = requests()
    plain = made("loop", NETWORK).train([replace(request, program=None) for request in asked])
    for place, (found, without) in enumerate(zip(expected, plain, strict=True)):
        assert (found.steps, found.loss, found.before) == (without.steps, without.loss, without.before)
        weights = without.weights if place == 2 else 0.75 * without.weights + 0.25 * to
        torch.testing.assert_close(found.weights, weights, rtol=1e-12, atol=1e-14)
        if place != 2:
            count = len(asked[place].rows)
            assert found.kept["order"].sort().values.tolist() == sorted([*range(count)] * 2)
            assert float(found.kept["scalar"]) == 0.25
        else:
            assert found.kept == {}


@pytest.mark.parametrize(("engine", "workers"), [("lean", 1), ("lean", 2), ("stacked", 1)])
def test_engines_agree(expected, engine, workers):
    trainer = made(engine, NETWORK, workers=workers)
    try:
        found = trainer.train(requests()[0])
    finally:
        trainer.close()
    for place, (one, same) in enumerate(zip(found, expected, strict=True)):
        assert set(one.kept) == set(same.kept)
        assert all(torch.equal(one.kept[name], same.kept[name]) for name in same.kept)
        torch.testing.assert_close(one.weights, same.weights, rtol=1e-10, atol=1e-12)
        if place != 2:  # the loop's own numbers
            assert torch.equal(one.weights, same.weights) and one.loss == same.loss


def test_local_program_marks_non_finite_results():
    (request, *_), loop = requests()[0], made("loop", NETWORK)
    found = loop.train([replace(request, program=LocalProgram(broken)), request])
    assert [one.finite for one in found] == [False, True]


def heavy(settings, work):
    """More than a pipe holds, back to the parent."""
    return LocalResult(0.0, 1, {"kept": work.tensors["sent"] + 1})


def test_lean_pool_exchanges_large_tensors_without_deadlock():
    sent = torch.arange(500_000, dtype=torch.float64)
    program = LocalProgram(heavy, {}, {"sent": sent})
    many = [replace(requests()[0][0], client=number, program=program) for number in range(9)]
    engine, found = made("lean", NETWORK, workers=2), []
    thread = threading.Thread(target=lambda: found.extend(engine.train(many)), daemon=True)
    thread.start()
    thread.join(60)
    waits = thread.is_alive()
    engine.close()
    assert not waits
    assert all(torch.equal(one.kept["kept"], sent + 1) for one in found) and len(found) == 9
