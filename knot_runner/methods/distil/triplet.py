"""Which of two examples is nearer to a third, as most of several teachers see it (You et al. 2017, L_RD).

Sizes and margin are ours: the paper's are not at hand.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from knot_runner.config.settings.methods.terms import TripletTermSettings
from knot_runner.methods.distil.tap_pairs import (
    NamedPairs,
    check_batch,
    check_pairs,
    nothing_to_compare,
    unit_length,
)
from knot_runner.methods.distil.term import TERMS, NetworkOutputs, Term, TermBatch, TermInputs, TermLoss
from knot_runner.util.errors import UserError


def draw_triples(count: int, examples: int, draws: torch.Generator) -> Tensor:
    """``count`` random triples of three different places of a batch, [count, 3]."""
    return torch.rand(count, examples, generator=draws).argsort(dim=1, stable=True)[:, :3]


def triplet_hinge(f: Tensor, teachers: list[Tensor], triples: Tensor, margin: float) -> Tensor:
    """Mean over triples of max(0, d(i, near) - d(i, far) + margin), [], d of the student's ``f`` [B, d].

    Of a triple (i, j, k) each of ``teachers`` ([B, D] each) votes for j or k as the nearer to i; where votes are equal
    on both sides the triple does not count. Distances are between features of length 1.
    """
    votes = torch.stack([_lead(g, triples).sign() for g in teachers]).sum(0)
    decided = votes != 0
    hinge = (margin + votes.sign() * -_lead(f, triples)).clamp_min(0)
    return (hinge * decided).sum() / decided.sum().clamp_min(1)


def _lead(x: Tensor, triples: Tensor) -> Tensor:
    """d(i, k) - d(i, j): above 0 where j is the nearer to i."""
    units = unit_length(x)
    corner, first, second = (units[triples[:, place]] for place in range(3))
    return torch.linalg.vector_norm(corner - second, dim=-1) - torch.linalg.vector_norm(corner - first, dim=-1)


def voted_triples(
    options: TripletTermSettings,
    pairs: NamedPairs,
    student: NetworkOutputs,
    teachers: list[NetworkOutputs],
    batch: TermBatch,
) -> Tensor:
    """Sum over pairs of taps of :func:`triplet_hinge`, [], on triples drawn of the batch; 0 below 3 examples."""
    if len(batch.labels) < 3:
        return nothing_to_compare(student.logits)
    triples = draw_triples(options.triples, len(batch.labels), batch.draws).to(student.logits.device)
    losses = []
    for place, (own, _) in enumerate(pairs[0]):
        voters = [teacher.taps[named[place][1]].flatten(1) for named, teacher in zip(pairs, teachers, strict=True)]
        losses.append(triplet_hinge(student.taps[own].flatten(1), voters, triples, options.margin))
    return torch.stack(losses).sum(0)


def _make_triplet(options: TripletTermSettings, inputs: TermInputs) -> TermLoss:
    check_pairs("triplet", inputs)
    check_batch("triplet", inputs)
    own = [[student for student, _ in named] for named in inputs.pairs]
    if any(taps != own[0] for taps in own):
        raise UserError("method.terms.triplet.taps: teachers vote on the same taps of the student, these differ")
    return partial(voted_triples, options, inputs.pairs)


TERMS["triplet"] = Term(TripletTermSettings, _make_triplet, taps="features")
