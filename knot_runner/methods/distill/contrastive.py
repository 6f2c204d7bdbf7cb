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
    """Return, for each example of a batch, the positions of ``count`` random negative examples, shape [B, count].

    ``positions``, shape [B], holds the positions of the batch's examples among all training examples, and ``examples``
    is the number of training examples. Negatives are drawn from all training examples except the example itself.
    """
    drawn = torch.randint(examples - 1, (len(positions), count), generator=draws).to(positions.device)
    return drawn + (drawn >= positions[:, None])


def noise_contrast(scores: Tensor, examples: int) -> Tensor:
    """Return the noise-contrastive loss, shape [B]: -log h(positive) - sum over negatives of log(1 - h(negative)).

    h = s / (s + m / n) is the probability that the score s belongs to the positive pair, for m negatives and n
    ``examples`` (Gutmann and Hyvarinen 2010). ``scores`` has shape [B, 1 + m], with the positive pair first.
    """
    noise = (scores.shape[1] - 1) / examples
    positive = scores[:, 0] / (scores[:, 0] + noise + _FLOOR)
    negative = noise / (scores[:, 1:] + noise + _FLOOR)
    return -positive.log() - negative.log().sum(1)


class ContrastPair(nn.Module):
    """Embedding layers for one pair of hidden features, and memories of the two networks' embeddings.

    A memory has shape [examples, dim] and holds a moving average of the embeddings of each training example. All
    embeddings have norm 1.
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
        """Return the loss, shape [B], of the student against the teacher's memory, plus the reverse.

        ``f`` and ``g`` are the student's and the teacher's features. The first term compares the student's embeddings
        with the memory of the teacher's embeddings. The second term swaps the two networks. In training mode, both
        memories are updated afterwards.
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
