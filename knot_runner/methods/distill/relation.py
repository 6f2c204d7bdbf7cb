"""Loss terms that compare relations among the examples of a batch.

f [B, d] are the student's features, and g [B, D] a teacher's features. Feature maps are flattened. The loss of a batch
with one example is 0.

The triplet term asks which of two examples is nearer to a third example. The majority of the teachers determines the
answer (You et al. 2017, L_RD). The paper does not state the number of triples and the margin, so these values are our
choice.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from knot_runner.config.settings.methods.terms import (
    PktTermSettings,
    RkdTermSettings,
    SimilarityTermSettings,
    TripletTermSettings,
)
from knot_runner.methods.distill.term import (
    TERMS,
    NamedPairs,
    TapComparison,
    Term,
    TermBatch,
    TermInputs,
    TermLoss,
    mean_over_teachers,
    nothing_to_compare,
    unit_length,
)
from knot_runner.models.taps import NetworkOutputs
from knot_runner.util.errors import UserError

#: Largest batch size B for which all B^3 angles are held in memory. For larger batches, at most ``ANGLES_AT_ONCE``^3
#: angles are in memory at a time.
ANGLES_AT_ONCE = 128
#: Two points are equal up to rounding if their squared distance is below this fraction of their squared norms.
_EQUAL = 1e-13
#: Constant that is added to probabilities before their ratio is taken, as in the authors' code of PKT.
_PKT_FLOOR = 1e-7


def similarity(f: Tensor, g: Tensor) -> Tensor:
    """Return the similarity loss ``||G_f - G_g||^2 / B^2``, a scalar (SP, Tung and Mori 2019).

    For features x, G_x is the matrix x x^T with each row scaled to norm 1.
    """
    difference = unit_length(f @ f.T) - unit_length(g @ g.T)
    return difference.square().sum() / len(f) ** 2


def probability_transfer(f: Tensor, g: Tensor) -> Tensor:
    """Return the PKT loss, a scalar (Passalis and Tefas 2018).

    For features x, the matrix p_x [B, B] is computed in two steps. First, the cosines between examples are mapped from
    [-1, 1] to [0, 1]. Then each row is divided by its sum. The loss is the mean of all B^2 elements of
    ``p_g log(p_g / p_f)``.
    """
    first = _nearness_shares(f)
    other = _nearness_shares(g)
    return (other * ((other + _PKT_FLOOR) / (first + _PKT_FLOOR)).log()).mean()


def _nearness_shares(x: Tensor) -> Tensor:
    units = unit_length(x)
    nearness = (units @ units.T + 1) / 2
    return nearness / nearness.sum(1, keepdim=True)


def distances_and_angles(options: RkdTermSettings, f: Tensor, g: Tensor) -> Tensor:
    """Return the weighted sum of the distance loss and the angle loss of RKD, a scalar (Park et al. 2019).

    For the distance loss, each network's distances between examples are divided by that network's mean distance. The
    distance loss is the smooth L1 difference between the two networks' distances, averaged over all pairs of examples.
    For the angle loss, see :func:`angle_relation`.
    """
    loss = nothing_to_compare(f)
    if options.distance:
        distances = F.smooth_l1_loss(_relative_distances(f), _relative_distances(g))
        loss = loss + options.distance * distances
    if options.angle:
        loss = loss + options.angle * angle_relation(f, g)
    return loss


def _relative_distances(x: Tensor) -> Tensor:
    squares = _squared_distances(_products(x))
    distinct = squares > 0
    distances = squares.where(distinct, 1).sqrt() * distinct
    mean = distances.sum() / distinct.sum().clamp_min(1)
    return (distances / mean.where(mean > 0, 1)).to(x)


def _products(x: Tensor) -> Tensor:
    """Return the inner products [B, B] of the rows of ``x`` after subtracting their mean, in float64.

    All angles are computed from these products in B^3 operations, whereas products of differences would take B^3 D.
    Small differences between products cancel, and float64 keeps the precision of float32 features.
    """
    x = x.double()
    x = x - x.mean(0)
    return x @ x.T


def _squared_distances(products: Tensor) -> Tensor:
    """Return squared distances [B, B], exactly 0 for points that are equal up to rounding."""
    norms = products.diagonal()
    lengths = norms[:, None] + norms
    squares = lengths - 2 * products
    return squares.where(squares > _EQUAL * lengths, 0)


def angle_relation(f: Tensor, g: Tensor) -> Tensor:
    """Return the angle loss of RKD, a scalar averaged over the B^3 triples of examples.

    A triple (i, j, k) forms an angle at example i. The loss of a triple is the smooth L1 difference between the cosines
    of this angle in the student's features ``f`` and in the teacher's features ``g``. If i equals j or k, the loss of
    the triple is 0.
    """
    n = len(f)
    at_once = max(1, ANGLES_AT_ONCE**3 // n**2)
    if at_once >= n:
        return _angle_part(f, g, slice(0, n)) / n**3
    parts = []
    for first in range(0, n, at_once):
        corners = slice(first, first + at_once)
        # The angles are computed again in the backward pass, so that they are not kept in memory.
        parts.append(checkpoint(_angle_part, f, g, corners, use_reentrant=False, preserve_rng_state=False))
    return torch.stack(parts).sum() / n**3


def _angle_part(f: Tensor, g: Tensor, corners: slice) -> Tensor:
    return F.smooth_l1_loss(_cosines(f, corners), _cosines(g, corners), reduction="sum")


def _cosines(x: Tensor, corners: slice) -> Tensor:
    """Return the cosines of the angles at x_i between x_j - x_i and x_k - x_i, shape [corners, B, B].

    ``corners``: the examples i. With the inner products p: (x_j - x_i) . (x_k - x_i) = p_jk - p_ij - p_ik + p_ii.
    """
    products = _products(x)
    squares = _squared_distances(products)[corners]
    distinct = squares > 0
    scale = (squares.where(distinct, 1).rsqrt() * distinct).to(x)
    first = products[corners]
    second = first - products.diagonal()[corners, None]
    numerators = (products - first[:, :, None] - second[:, None, :]).to(x)
    return numerators * scale[:, :, None] * scale[:, None, :]


def _make_relation(compare: TapComparison, options: Any, inputs: TermInputs) -> TermLoss:
    """Return the term that applies ``compare`` to a batch's flattened features. The term is 0 for a single example."""

    def compare_examples(f: Tensor, g: Tensor) -> Tensor:
        if len(f) < 2:
            return nothing_to_compare(f)
        return compare(f.flatten(1), g.flatten(1))

    return partial(mean_over_teachers, inputs.pairs, compare_examples)


def _make_rkd(options: RkdTermSettings, inputs: TermInputs) -> TermLoss:
    return _make_relation(partial(distances_and_angles, options), options, inputs)


def draw_triples(count: int, examples: int, draws: torch.Generator) -> Tensor:
    """Return ``count`` random triples, shape [count, 3]. Each triple holds three different positions in a batch.

    ``examples`` is the number of examples in the batch.
    """
    return torch.rand(count, examples, generator=draws).argsort(dim=1, stable=True)[:, :3]


def triplet_hinge(f: Tensor, teachers: list[Tensor], triples: Tensor, margin: float) -> Tensor:
    """Return the triplet loss, averaged over triples, a scalar.

    All features are scaled to norm 1. For a triple (i, j, k), each teacher votes for the example, j or k, that is
    nearer to i in the teacher's features. ``near`` is the example with more votes, and ``far`` is the other example.
    The loss of a triple is ``max(0, d(i, near) - d(i, far) + margin)``, where d is the distance in the student's
    features ``f``. Triples with a tied vote are left out of the average.
    """
    votes = torch.stack([_lead(g, triples).sign() for g in teachers]).sum(0)
    decided = votes != 0
    hinge = (margin + votes.sign() * -_lead(f, triples)).clamp_min(0)
    return (hinge * decided).sum() / decided.sum().clamp_min(1)


def _lead(x: Tensor, triples: Tensor) -> Tensor:
    """Return d(i, k) - d(i, j) for each triple, which is positive if j is nearer to i than k."""
    units = unit_length(x)
    corner, first, second = (units[triples[:, column]] for column in range(3))
    lead: Tensor = torch.linalg.vector_norm(corner - second, dim=-1) - torch.linalg.vector_norm(corner - first, dim=-1)
    return lead


def voted_triples(
    options: TripletTermSettings, pairs: NamedPairs, student: NetworkOutputs, teachers: list[NetworkOutputs],
    batch: TermBatch,
) -> Tensor:  # fmt: skip
    """Return the triplet loss (:func:`triplet_hinge`) of triples on which teachers vote, summed over pairs of taps.

    The triples are drawn from the batch. For a batch with fewer than 3 examples, the result is 0.
    """
    if len(batch.labels) < 3:
        return nothing_to_compare(student.logits)
    triples = draw_triples(options.triples, len(batch.labels), batch.draws).to(student.logits.device)
    losses = []
    for index, (student_tap, _) in enumerate(pairs[0]):
        voters = [teacher.taps[named[index][1]].flatten(1) for named, teacher in zip(pairs, teachers, strict=True)]
        losses.append(triplet_hinge(student.taps[student_tap].flatten(1), voters, triples, options.margin))
    return torch.stack(losses).sum(0)


def _make_triplet(options: TripletTermSettings, inputs: TermInputs) -> TermLoss:
    student_taps = set()
    for named in inputs.pairs:
        of_student, _ = zip(*named, strict=True)
        student_taps.add(of_student)
    if len(student_taps) > 1:
        raise UserError(
            "student taps must be the same for all teachers, but the default pairs differ. Set the pairs in this key",
            "method.terms.triplet.taps",
        )
    return partial(voted_triples, options, inputs.pairs)


TERMS.update(
    sp=Term(SimilarityTermSettings, partial(_make_relation, similarity), taps="last"),
    rkd=Term(RkdTermSettings, _make_rkd, taps="features"),
    pkt=Term(PktTermSettings, partial(_make_relation, probability_transfer), taps="features"),
    triplet=Term(TripletTermSettings, _make_triplet, taps="features"),
)
