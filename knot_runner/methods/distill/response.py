"""Loss terms that read only logits: cross-entropy, softened outputs, decoupled distillation and transport cost."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.terms import (
    CeTermSettings,
    DkdTermSettings,
    KdTermSettings,
    SinkhornTermSettings,
)
from knot_runner.methods.distill.term import TERMS, Term, TermBatch
from knot_runner.methods.losses import solver_of
from knot_runner.models.taps import NetworkOutputs
from knot_runner.transport import transport_loss


def true_labels(
    options: CeTermSettings, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch
) -> Tensor:
    """Return the cross-entropy with the true labels, averaged over the labeled examples of the batch, a scalar.

    If no example is labeled, the result is 0.
    """
    total = F.cross_entropy(
        student.logits, batch.labels, ignore_index=UNLABELED, reduction="sum", label_smoothing=options.label_smoothing
    )
    return total / (batch.labels >= 0).sum().clamp_min(1)


def softened_outputs(
    options: KdTermSettings, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch
) -> Tensor:
    """Return each example's KD loss between the networks' softened outputs, shape [B] (Hinton et al. 2015).

    Let tau be the temperature. q is softmax(z / tau) for the student's logits z, and p is softmax(v / tau) for the
    teacher's logits v. ``options.form`` selects the loss: KL(p || q), or the cross-entropy ``-sum(p log q)``. With
    several teachers, ``options.mean`` selects whether their logits or their probabilities are averaged to compute p.
    With ``options.temperature_squared``, the loss is multiplied by tau^2.
    """
    log_q = F.log_softmax(student.logits / options.temperature, dim=-1)
    logits = torch.stack([teacher.logits for teacher in teachers])
    if options.mean == "logits":
        p = F.softmax(logits.mean(0) / options.temperature, dim=-1)
    else:
        p = F.softmax(logits / options.temperature, dim=-1).mean(0)
    terms = -p * log_q
    if options.form == "kl":
        terms = F.kl_div(log_q, p, reduction="none")
    loss = terms.sum(-1)
    if options.temperature_squared:
        loss = loss * options.temperature**2
    return loss


def decoupled(
    options: DkdTermSettings, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch
) -> Tensor:
    """Return the DKD loss (Zhao et al. 2022) of each example, averaged over teachers, shape [B].

    The loss is tau^2 (alpha TCKD + beta NCKD), where tau is the temperature. TCKD is KL(teacher || student) over
    two outcomes: the label, and any other class. NCKD is KL(teacher || student) over all classes except the label. In
    the first ``warmup`` epochs, the loss is multiplied by a factor that grows linearly to 1. For an example without a
    label, the loss is 0.
    """
    labels = batch.labels.clamp_min(0)
    student_target, student_rest = _split(student.logits / options.temperature, labels)
    losses = []
    for teacher in teachers:
        target, rest = _split(teacher.logits / options.temperature, labels)
        tckd = F.kl_div(student_target, target, reduction="none", log_target=True).sum(-1)
        nckd = F.kl_div(student_rest, rest, reduction="none", log_target=True).sum(-1)
        losses.append(options.alpha * tckd + options.beta * nckd)
    grown = 1.0
    if options.warmup:
        grown = min(batch.epoch / options.warmup, 1.0)
    loss = grown * options.temperature**2 * torch.stack(losses).mean(0)
    return loss.where(batch.labels >= 0, 0)


def _split(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return two log-distributions: over (label, any other class), [B, 2], and over the other classes, [B, C - 1]."""
    log_p = F.log_softmax(logits, dim=-1)
    others = torch.arange(logits.shape[-1] - 1, device=logits.device).expand(len(logits), -1)
    others = others + (others >= labels[:, None])
    rest = log_p.gather(1, others)
    both = torch.cat([log_p.gather(1, labels[:, None]), rest.logsumexp(-1, keepdim=True)], dim=1)
    return both, F.log_softmax(rest, dim=-1)


def transported(
    options: SinkhornTermSettings, points: Tensor, student: NetworkOutputs, teachers: list[NetworkOutputs],
    batch: TermBatch,
) -> Tensor:  # fmt: skip
    """Return the transport cost T_eps of each example, averaged over teachers, shape [B] (KNOT eq. 1).

    T_eps compares the student's and a teacher's probabilities softmax(z / tau), for logits z and temperature tau.
    """
    p = F.softmax(student.logits / options.temperature, dim=-1)[:, None]
    q = F.softmax(torch.stack([teacher.logits for teacher in teachers], dim=1) / options.temperature, dim=-1)
    return transport_loss(p, q, points.to(p.device), solver_of(options)).mean(1).to(p)


TERMS.update(
    ce=Term(CeTermSettings, lambda options, _: partial(true_labels, options), needs_teacher=False, reads_labels=True),
    kd=Term(KdTermSettings, lambda options, _: partial(softened_outputs, options)),
    dkd=Term(DkdTermSettings, lambda options, _: partial(decoupled, options), reads_labels=True),
    sinkhorn=Term(SinkhornTermSettings, lambda options, inputs: partial(transported, options, inputs.points)),
)
