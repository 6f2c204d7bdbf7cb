"""Contrastive representation distillation (CRD, Tian et al. 2020).

The two networks' embeddings of the same example form a positive pair, and embeddings of different examples form
negative pairs. Negatives are drawn from all other examples, not only from other classes, so labels are not needed.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from knot_runner.config.settings.methods.terms import CrdTermSettings
from knot_runner.methods.distill.term import TERMS, PairModules, Term, TermBatch, TermInputs, unit_length
from knot_runner.util.errors import UserError

#: Constant that is added to the denominator of h (:func:`noise_contrast`), as in the authors' code.
_FLOOR = 1e-7


def draw_negatives(positions: Tensor, count: int, examples: int, draws: torch.Generator) -> Tensor:
    """Return the positions of ``count`` random negatives for each example of a batch, shape [B, count].

    The negatives of an example are drawn from all other training examples.

    Args:
        positions: The positions [B] of the batch's examples among all training examples.
        count: The number of negatives for each example.
        examples: The number of training examples.
        draws: The random generator.
    """
    drawn = torch.randint(examples - 1, (len(positions), count), generator=draws).to(positions.device)
    return drawn + (drawn >= positions[:, None])


def noise_contrast(scores: Tensor, examples: int) -> Tensor:
    """Return the noise-contrastive loss of each example, shape [B] (Gutmann and Hyvarinen 2010).

    ``scores`` [B, 1 + m] holds, for each example, the score s_0 of the positive pair and the scores s_1 to s_m of the m
    negative pairs. A pair with score s is positive with the probability ``h(s) = s / (s + m / n)``, where n is the
    number of training ``examples``. The loss is ``-log h(s_0) - sum_j log(1 - h(s_j))``.
    """
    noise = (scores.shape[1] - 1) / examples
    positive = scores[:, 0] / (scores[:, 0] + noise + _FLOOR)
    negative = noise / (scores[:, 1:] + noise + _FLOOR)
    return -positive.log() - negative.log().sum(1)


class ContrastPair(nn.Module):
    """The contrastive loss of one pair of taps (hidden layers).

    Student and teacher each have an embedding layer and a memory. A memory [examples, dim] holds a moving average of
    each training example's embeddings. All embeddings have norm 1.
    """

    student_memory: Tensor
    teacher_memory: Tensor
    student_constant: Tensor
    teacher_constant: Tensor

    def __init__(self, options: CrdTermSettings, examples: int, f: Tensor, g: Tensor) -> None:
        super().__init__()
        self.options = options
        self.negatives = min(options.negatives, examples - 1)
        self.student_embedding = nn.Linear(f[0].numel(), options.dim)
        self.teacher_embedding = nn.Linear(g[0].numel(), options.dim)
        for name in ("student", "teacher"):
            self.register_buffer(f"{name}_memory", unit_length(torch.randn(examples, options.dim)))
            # normalization constant of a memory, estimated on the first batch; 0: not estimated yet
            self.register_buffer(f"{name}_constant", torch.zeros(()))
        self.to(f)

    def forward(self, f: Tensor, g: Tensor, batch: TermBatch) -> Tensor:
        """Return the contrastive loss between student and teacher in both directions, shape [B].

        ``f`` and ``g`` are the student's and the teacher's features. The loss is the sum of two terms. The first term
        compares the student's embeddings with the memory of the teacher's embeddings. The second term compares the
        teacher's embeddings with the memory of the student's embeddings. In training mode, both memories are then
        updated.
        """
        student = unit_length(self.student_embedding(f.flatten(1)))
        teacher = unit_length(self.teacher_embedding(g.flatten(1)))
        positions = batch.positions
        negatives = draw_negatives(positions, self.negatives, len(self.student_memory), batch.draws)
        places = torch.cat([positions[:, None], negatives], 1)
        loss = self._contrast(student, self.teacher_memory, self.teacher_constant, places)
        loss = loss + self._contrast(teacher, self.student_memory, self.student_constant, places)
        if self.training:
            self._move(self.student_memory, student, positions)
            self._move(self.teacher_memory, teacher, positions)
        return loss

    def _contrast(self, embedded: Tensor, memory: Tensor, constant: Tensor, places: Tensor) -> Tensor:
        # compute all products and select the drawn ones, which is less work than to gather the drawn rows; from a copy,
        # because the memory changes before the backward pass
        products = (embedded @ memory.clone().T).gather(1, places)
        raised = (products / self.options.temperature).exp()
        # no branch on a value, which would wait for the device in every step
        scale = constant.where(constant != 0, raised.detach().mean() * len(memory))
        constant.copy_(scale)
        return noise_contrast(raised / scale, len(memory))

    @torch.no_grad()
    def _move(self, memory: Tensor, embedded: Tensor, positions: Tensor) -> None:
        momentum = self.options.momentum
        memory[positions] = unit_length(momentum * memory[positions] + (1 - momentum) * embedded)


def _make_crd(options: CrdTermSettings, inputs: TermInputs) -> PairModules:
    if inputs.examples < 2:
        raise UserError("a single training example has no negatives. Use more examples", "method.terms.crd.negatives")
    return PairModules(inputs, partial(ContrastPair, options, inputs.examples))


TERMS.update(crd=Term(CrdTermSettings, _make_crd, taps="features"))
