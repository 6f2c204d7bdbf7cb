"""The loss of a student that trains with loss terms, and the outputs of frozen teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.terms import Terms
from knot_runner.engine.examples import ClientExamples, ImageExamples
from knot_runner.engine.loop import EVALUATION_BATCH, Resources, stored_model
from knot_runner.engine.requests import Ref
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import copy_weights
from knot_runner.methods.distill.term import TERMS, NamedPairs, TermBatch, TermInputs, TermLoss
from knot_runner.models.network import Network
from knot_runner.models.taps import NetworkOutputs, TapReader, check_taps, default_taps
from knot_runner.util.errors import UserError

#: Number of examples whose outputs are computed to find the shapes of hidden features.
SHOWN = 4
#: Number of batches on which the initial values of the terms are measured.
FIRST_BATCHES = 8
#: A term that is smaller than this fraction of the cross-entropy counts as 0, because its value may be a rounding
#: error.
ROUNDING_SHARE = 1e-6


@dataclass(frozen=True)
class TermSpec:
    """A loss term's name and options, and the pairs of taps (hidden layers) that the term compares for each teacher."""

    name: str
    options: Any
    pairs: NamedPairs

    @property
    def needs_teacher(self) -> bool:
        """Return whether the term reads the outputs of a teacher."""
        return TERMS[self.name].needs_teacher


def read_terms(terms: Terms, student: Network, teachers: list[Network], key: str = "method.terms") -> list[TermSpec]:
    """Return the specification of each term in ``terms``, including the taps that the term reads.

    In error messages, ``key`` is the name of the setting that holds the terms.

    Raises:
        UserError: A term is unknown, or does not fit the networks.
    """
    read = []
    for name, options in terms.items():
        term = TERMS[name]
        where = f"{key}.{name}"
        if term.needs_teacher and not teachers:
            raise UserError("this term needs a teacher, but method.teachers is empty", where)
        pairs: NamedPairs = []
        for teacher in teachers:
            if term.taps == "none":
                break
            named = getattr(options, "taps", None) or default_taps(term.taps, student, teacher)
            if not named:
                raise UserError(
                    f"this term needs feature maps, but student {student.spec.name!r} or teacher "
                    f"{teacher.spec.name!r} has none. Use kd or rkd, which work with any network",
                    f"{where}.taps",
                )
            own_taps, other_taps = zip(*named, strict=True)
            check_taps(student, own_taps, f"{where}.taps")
            check_taps(teacher, other_taps, f"{where}.taps")
            pairs.append(named)
        read.append(TermSpec(name, options, pairs))
    return read


def wanted_taps(terms: list[TermSpec], teachers: int) -> tuple[list[str], list[list[str]]]:
    """Return the names of the taps that ``terms`` read: the student's taps, and the taps of each teacher.

    ``teachers`` is the number of teachers.
    """
    student_taps: dict[str, None] = {}
    others: list[dict[str, None]] = [{} for _ in range(teachers)]
    for term in terms:
        for names, pairs in zip(others, term.pairs, strict=False):  # a term without taps has no pairs
            for student_tap, other in pairs:
                student_taps[student_tap] = names[other] = None
    return list(student_taps), list(map(list, others))


class WeightedTerms(nn.Module):
    """The loss of one student: the weighted sum of the loss ``terms``.

    The module holds the parameters and buffers of the terms. For the arguments from ``student`` to ``points``, see
    :class:`TermInputs`.
    """

    def __init__(
        self, terms: list[TermSpec], student: NetworkOutputs, teachers: list[NetworkOutputs], examples: int,
        points: Tensor,
    ) -> None:  # fmt: skip
        super().__init__()
        self.specs = terms
        self.losses: dict[str, TermLoss] = {}
        self.modules_of_terms = nn.ModuleDict()
        #: term name -> weight; :meth:`weigh` replaces "auto" by a number
        self.weights: dict[str, Any] = {}
        for spec in terms:
            inputs = TermInputs(student, teachers, spec.pairs, examples, points)
            self.losses[spec.name] = loss = TERMS[spec.name].make(spec.options, inputs)
            if isinstance(loss, nn.Module):
                self.modules_of_terms[spec.name] = loss
            self.weights[spec.name] = spec.options.weight

    def forward(
        self, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch, share: float = 1.0
    ) -> Tensor:
        """Return the scalar loss of a batch.

        The weight of each term that reads a teacher is multiplied by ``share``. Terms with weight 0 are not computed.
        """
        total = torch.zeros((), device=student.logits.device)
        for spec in self.specs:
            factor = 1.0
            if spec.needs_teacher:
                factor = share
            if factor and self.weights[spec.name]:
                value = self.losses[spec.name](student, teachers, batch)
                if not isinstance(value, Tensor) or value.shape not in ((), batch.labels.shape):
                    returned = type(value).__name__
                    if isinstance(value, Tensor):
                        returned = f"{list(value.shape)}"
                    raise UserError(f"the loss has shape {returned} instead of [] or [batch]", f"TERMS[{spec.name!r}]")
                total = total + factor * self.weights[spec.name] * value.mean()
        return total

    @torch.no_grad()
    def weigh(
        self, batches: Iterator[tuple[NetworkOutputs, list[NetworkOutputs], TermBatch]], auto_ratio: float
    ) -> dict[str, dict[str, float]]:
        """Replace each weight "auto" by a number. Return the ``weight`` and the ``ratio`` of every term.

        ``ratio`` is the weighted term divided by the cross-entropy, both summed over ``batches``. An automatic weight
        is chosen such that the ratio is ``auto_ratio``. Let C be the number of classes. For a batch without labels,
        log C replaces the cross-entropy.

        Raises:
            UserError: A term with the weight "auto" is 0 on ``batches``.
        """
        remembered = copy_weights(self.modules_of_terms)  # only training batches may set state
        sums = dict.fromkeys(self.losses, 0.0)
        reference = 0.0
        for student, teachers, batch in batches:
            labeled = batch.labels >= 0
            cross_entropy = float(torch.log(torch.tensor(float(student.logits.shape[1]))))
            if labeled.any():
                cross_entropy = float(F.cross_entropy(student.logits[labeled], batch.labels[labeled]))
            reference += cross_entropy
            for name, loss in self.losses.items():
                sums[name] += float(loss(student, teachers, batch).mean())
        self.modules_of_terms.load_state_dict(remembered)
        facts = {}
        for name, total in sums.items():
            if self.weights[name] == "auto":
                if not total > ROUNDING_SHARE * reference:
                    raise UserError(
                        "the initial value of this term is 0, so 'auto' cannot compute a weight. Use a number",
                        f"method.terms.{name}.weight",
                    )
                self.weights[name] = auto_ratio * reference / total
            facts[name] = {"weight": float(self.weights[name]), "ratio": self.weights[name] * total / reference}
        return facts


#: Maximum size of a teacher's cached outputs, in bytes. Larger outputs are not cached, but computed for every batch.
MOST_BYTES = 2**30


def frozen_teachers(
    readers: Sequence[TapReader], examples: ClientExamples, cached: bool, originals: ImageExamples | None = None
) -> Callable[[Tensor, Tensors], list[NetworkOutputs]]:
    """Return a function ``(positions, inputs) -> outputs`` that computes each teacher's outputs for a batch.

    ``positions`` [B] are the indices of the batch's examples in ``examples``. ``inputs`` are the student's inputs.

    Args:
        readers: For each teacher, a function that computes the teacher's outputs in evaluation mode.
        examples: The student's training examples.
        cached: Whether the inputs are the same in every epoch. If so, a teacher's outputs for all examples are cached,
            unless they take more than ``MOST_BYTES``.
        originals: The teachers' images, in the order of ``examples``. None if the teachers read the student's images.
    """
    outputs_of_all: list[NetworkOutputs | None] = [None] * len(readers)
    if cached:
        outputs_of_all = [_outputs_of_all(read, originals or examples) for read in readers]

    @torch.no_grad()
    def outputs_of(positions: Tensor, inputs: Tensors) -> list[NetworkOutputs]:
        """Return each teacher's outputs for a batch."""
        if originals is not None:
            inputs = {"x": originals.images[positions.to(originals.rows.device)]}
        outputs = []
        for read, kept in zip(readers, outputs_of_all, strict=True):
            if kept is None:
                outputs.append(read(**inputs))
            else:
                rows = positions.to(kept.logits.device)
                taps = {name: tap[rows] for name, tap in kept.taps.items()}
                outputs.append(NetworkOutputs(kept.logits[rows], taps))
        return outputs

    return outputs_of


def frozen_network(network: Network, weights: Ref, resources: Resources) -> nn.Module:
    """Return the network with stored ``weights``, in evaluation mode, without gradients."""
    return stored_model(resources, network, weights).requires_grad_(False).eval()


@torch.no_grad()
def _outputs_of_all(read: TapReader, examples: ClientExamples) -> NetworkOutputs | None:
    """Return the outputs for all examples, in order; None if the outputs exceed ``MOST_BYTES``."""
    kept: Tensors = {}
    for positions, inputs in examples.in_turn(EVALUATION_BATCH):
        output = read(**inputs)
        outputs = {"": output.logits, **output.taps}  # no tap has an empty name
        if sum(part[:1].nbytes for part in outputs.values()) * len(examples) > MOST_BYTES:
            return None
        for name, part in outputs.items():
            if name not in kept:
                kept[name] = part.new_empty(len(examples), *part.shape[1:])
            kept[name][positions.to(part.device)] = part
    return NetworkOutputs(kept.pop(""), kept)
