"""Checks for the parts of a distillation: loss terms and teacher weightings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.strict import build
from knot_runner.methods.distill.term import TERMS, Term, TermBatch, TermInputs, TermLoss
from knot_runner.methods.weighting import WEIGHTINGS, Weighting, needs_bias
from knot_runner.models.taps import NetworkOutputs

_LABELS = torch.tensor([1, 0, 3, UNLABELED, 2, 1])
_ALL = torch.arange(len(_LABELS))
_POINTS = torch.tensor([[0.0], [1.0], [1.5], [3.0]], dtype=torch.float64)
#: Taps of a term -> for each compared pair, the shapes of the student's and of a teacher's output.
_SHAPES = {"none": [], "features": [((5,), (3,))], "maps": [((3, 4, 4), (2, 4, 4)), ((4, 2, 2), (3, 4, 4))]}

#: Outputs of each network, the student first: its logits, followed by the outputs of tapped layers.
Networks = Sequence[Sequence[Tensor]]


def check_term(term: str | Term, *, zero_when_equal: bool = False, least: float = 0.0, **options: Any) -> None:
    """Check a loss term on random outputs of a student and two teachers with features of different sizes.
    ``zero_when_equal``: whether the loss must be 0 for a student equal to its teacher; ``least``: its lower bound;
    ``options``: settings of the term, without ``weight``."""
    if isinstance(term, str):
        term = TERMS[term]
    settings = build(term.options, {"weight": 1.0, **options}, "options")
    networks = [_outputs(term, 0)]
    if term.needs_teacher:
        networks += [_outputs(term, 1), _outputs(term, 2)]
    student, *teachers = networks
    for rows, dtype in ((_ALL[:1], torch.float64), (_ALL, torch.float32), (_ALL, torch.float64)):
        converted = _each(lambda part, dtype=dtype: part.to(dtype), networks)
        loss = _made(term, settings, converted)
        value, slopes = _asked(loss, converted, rows)
        fits = value.dtype == dtype and value.shape in ((), rows.shape) and value.isfinite().all()
        assert fits and value.min() >= least, f"the loss of {len(rows)} examples is {value}"
    assert torch.equal(value, _asked(loss, networks)[0]), "the loss of the same batch differs between two calls"
    assert all(slope.any() for slope in slopes[1:] or slopes), "the term does not read all outputs that it requests"
    fits = torch.autograd.gradcheck(
        lambda *outputs: _value(loss, [outputs, *teachers]).sum(),
        _leaves(student),
        fast_mode=True,
        raise_exception=False,
    )
    assert fits, "the gradient does not match the change of the loss"
    for count in (2, len(_ALL)):
        dead = [student[0], *(torch.cat([0 * tap[:count], tap[count:]]) for tap in student[1:])]
        for slope in _asked(loss, [dead, *teachers])[1]:
            assert slope.abs().max() < 1e6, "steep gradient at features of 0"
    blank, slopes = _asked(loss, networks, labels=torch.full_like(_LABELS, UNLABELED))
    if term.reads_labels:
        assert not any(part.any() for part in (blank, *slopes)), "reads_labels does not match"
    else:
        assert torch.equal(blank, value), "reads_labels does not match"
    reordered, drawn_anew = _asked(loss, networks, _ALL.roll(2))[0], _asked(loss, networks, seed=1)[0]
    same = torch.allclose(reordered, value.expand(len(_ALL)).roll(2))
    assert same or not torch.equal(drawn_anew, value), "the loss depends on the order of the examples"
    if teachers and not (isinstance(loss, nn.Module) and list(loss.parameters())):
        values = []
        for teacher in (teachers[:1], teachers[:1] * 2):
            repeated = [student, *teacher]
            values.append(_asked(_made(term, settings, repeated), repeated)[0])
        assert torch.allclose(*values, rtol=1e-12), "the loss changes if the same teacher is given twice"
    if zero_when_equal:
        value, slopes = _asked(_made(term, settings, [student, student]), [student, student])
        for part in (value, *slopes):
            assert part.abs().max() < 1e-6, "not 0 for a student that equals its teacher"


def _outputs(term: Term, number: int) -> list[Tensor]:
    """Return random outputs of the student (``number`` 0) or a teacher."""
    draws = torch.Generator().manual_seed(number)
    shapes = [(len(_POINTS),), *(pair[min(number, 1)] for pair in _SHAPES.get(term.taps, [((3, 4, 4), (2, 2, 2))]))]
    return [torch.randn(len(_ALL), *shape, generator=draws, dtype=torch.float64) for shape in shapes]


def _named(outputs: Sequence[Tensor]) -> NetworkOutputs:
    return NetworkOutputs(outputs[0], {f"tap {number}": tap for number, tap in enumerate(outputs[1:])})


def _made(term: Term, settings: Any, networks: Networks) -> TermLoss:
    student, *teachers = map(_named, networks)
    pairs = []
    if student.taps:
        pairs = [[(name, name) for name in student.taps]] * len(teachers)
    torch.manual_seed(0)
    loss = term.make(settings, TermInputs(student, teachers, pairs, 20, _POINTS))
    if isinstance(loss, nn.Module):
        loss.eval()
    return loss


def _asked(loss: TermLoss, networks: Networks, *rows: Tensor, **batch: Any) -> tuple[Tensor, list[Tensor]]:
    """Return :func:`_value` and the gradients with respect to the student's outputs (0 for an unused output)."""
    leaves = _leaves(networks[0])
    value = _value(loss, [leaves, *networks[1:]], *rows, **batch)
    return value.detach(), list(torch.autograd.grad(value.sum() + sum(0 * leaf.sum() for leaf in leaves), leaves))


def _leaves(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [part.clone().requires_grad_() for part in outputs]


def _each(change: Callable[[Tensor], Tensor], networks: Networks) -> list[list[Tensor]]:
    return [list(map(change, outputs)) for outputs in networks]


def _value(loss: TermLoss, networks: Networks, rows: Tensor = _ALL, labels: Tensor = _LABELS, seed: int = 0) -> Tensor:
    """Return the loss of the examples ``rows``, and check that the teachers' outputs are not changed."""
    student, *others = _each(lambda part: part[rows], networks)
    batch = TermBatch(labels[rows], rows, torch.Generator().manual_seed(seed))
    value = loss(_named(student), list(map(_named, others)), batch)
    for before, after in zip(networks[1:], others, strict=True):
        for part, kept in zip(before, after, strict=True):
            assert torch.equal(part[rows], kept), "it changes the teachers"
    return value


def check_weighting(weighting: str | Weighting) -> None:
    """Check a weighting of teachers on random outputs [6, 3, 4]: six examples, three teachers, four classes."""
    function, biased = weighting, True
    if isinstance(weighting, str):
        function, biased = WEIGHTINGS[weighting], needs_bias(weighting)
    q = torch.arange(72.0).cos().reshape(6, 3, 4).softmax(2)
    shares = torch.tensor([0.2, 0.3, 0.5])
    biases = torch.arange(12.0).sin().reshape(3, 4).softmax(1)

    def weigh(q: Tensor, shares: Tensor = shares, biases: Tensor = biases) -> Tensor:
        weights = function(q, shares, biases if biased else None)
        assert weights.shape == q.shape[:2], f"weights {list(weights.shape)} instead of {list(q.shape[:2])}"
        assert (weights >= 0).all() and weights.isfinite().all(), f"weights that are negative or not finite: {weights}"
        return weights

    whole = weigh(q)
    order = [2, 0, 1]
    rows = [4, 1]
    moved = weigh(q[:, order], shares[order], biases[order])
    assert torch.allclose(moved, whole[:, order]), "weights depend on the order of the teachers"
    assert torch.allclose(weigh(q[rows]), whole[rows]), "weights depend on the other examples"
    weigh(q[:, :1], shares[:1], biases[:1])
    alike = weigh(q[:, :1].expand_as(q), torch.full_like(shares, 1 / 3), biases[:1].expand_as(biases))
    assert torch.allclose(alike, alike[:, :1].expand_as(alike)), "equal teachers have different weights"
    for bias in (biases, torch.full_like(biases, 1 / 4), torch.eye(4)[:3]):
        weigh(bias.expand_as(q))
