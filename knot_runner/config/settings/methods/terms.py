"""Settings of the loss terms of ``method=distill``, one dataclass each (``method.terms.NAME``).

The terms: ``knot_runner/methods/distill/terms.md``. Their default values: ``conf/base/term/NAME.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.knot import require_solvable
from knot_runner.config.settings.sizes import (
    Fraction,
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    StepsOrNone,
    Temperature,
    Width,
)
from knot_runner.config.strict import AtMost, ByName, Holds, require
from knot_runner.util.errors import UserError

#: What a term's loss is multiplied by; ``auto``: decided by the run from the terms' first values.
Weight = Literal["auto"] | NotNegative
#: [[student's tap, teacher's tap], ...]; null = what the term reads by default
TapPairs = list[list[str]] | None


class _OfTaps:
    """A term that compares what models compute in their middle, by ``taps``."""

    taps: TapPairs

    def __post_init__(self) -> None:
        if self.taps is None:
            return
        require(bool(self.taps), "taps", "names no pair; null = the term's default")
        for pair in self.taps:
            require(len(pair) == 2, "taps", f"{pair} is not a pair [student's tap, teacher's tap]")


@dataclass
class CeTermSettings:
    """Cross-entropy with the true labels."""

    #: of the term in the student's loss; ``auto`` = so that it begins at ``method.auto_ratio`` of the cross-entropy
    weight: Weight
    #: share of the target that is spread over all classes
    label_smoothing: FractionOrNone


@dataclass
class KdTermSettings:
    """Softened outputs of the teachers (Hinton et al. 2015)."""

    #: of the term in the student's loss; ``auto`` = so that it begins at ``method.auto_ratio`` of the cross-entropy
    weight: Weight
    #: temperature of both outputs
    temperature: Temperature
    #: times its square, which keeps the gradient's size as it grows; false is the control
    temperature_squared: bool
    #: cross_entropy: -sum p log q, the same gradient
    form: Literal["kl", "cross_entropy"]
    #: of several teachers: of their softened probabilities, or of their logits
    mean: Literal["probabilities", "logits"]


@dataclass
class DkdTermSettings:
    """Decoupled distillation: the label against the rest, and the rest among themselves (Zhao et al. 2022)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: of the label against the rest
    alpha: NotNegative
    #: of the other classes among themselves
    beta: NotNegative
    #: temperature of both outputs
    temperature: Temperature
    #: epochs over which the term grows linearly to its full size; 0 = at once
    warmup: StepsOrNone


@dataclass
class SinkhornTermSettings:
    """Regularized transport between the student's and each teacher's outputs (KNOT eq. 1)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: temperature of both outputs
    temperature: Temperature
    #: as of ``method.loss`` with ``name=sinkhorn``
    solver: Literal["newton", "geomloss", "exact", "line", "tree"]
    #: weight of the entropy, in units of the transport cost; 1e-4 at least
    epsilon: float
    #: of newton: largest error of a marginal
    tolerance: float
    #: of solver geomloss alone
    scaling: Fraction

    def __post_init__(self) -> None:
        require_solvable(self.epsilon, self.tolerance)


@dataclass(kw_only=True)
class HintTermSettings(_OfTaps):
    """Middle features, the student's through a trained adapter (FitNets, Romero et al. 2015)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the middle map of each
    taps: TapPairs = None
    #: ce: the channels at each position, or the features of a vector, are read as logits
    form: Literal["l2", "l1", "ce"]
    #: auto: where shapes differ
    adapter: Literal["auto", "always"]


@dataclass(kw_only=True)
class AttentionTermSettings(_OfTaps):
    """Where maps are active (attention transfer, Zagoruyko and Komodakis 2017)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = all maps
    taps: TapPairs = None
    #: power of the activations in a map's mean over channels
    p: Annotated[float, AtMost(16), Holds(lambda value: value >= 1, "is not at least 1")]


@dataclass
class SimilarityTermSettings(_OfTaps):
    """Which examples of a batch are alike (similarity-preserving, Tung and Mori 2019)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the last maps
    taps: TapPairs = None


@dataclass(kw_only=True)
class RkdTermSettings(_OfTaps):
    """Distances and angles between the examples of a batch (Park et al. 2019)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the features that the last layers read
    taps: TapPairs = None
    #: of the distances between pairs of examples
    distance: NotNegative
    #: of the angles between triples of examples
    angle: NotNegative


@dataclass
class PktTermSettings(_OfTaps):
    """How near each example is to the others, as a distribution (Passalis and Tefas 2018)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the features that the last layers read
    taps: TapPairs = None


@dataclass(kw_only=True)
class CrdTermSettings(_OfTaps):
    """Contrastive: an example's two embeddings against memories of all examples' (Tian et al. 2020)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the features that the last layers read
    taps: TapPairs = None
    #: temperature of the contrast
    temperature: Temperature
    #: examples against which each is held; of fewer examples, all the others
    negatives: Items
    #: numbers of an embedding
    dim: Annotated[Width, Holds(lambda value: value >= 1, "is not at least 1")]
    #: share of a memory that an update keeps
    momentum: FractionOrNone


@dataclass(kw_only=True)
class TripletTermSettings(_OfTaps):
    """Which of two examples is nearer to a third, as most teachers see it (You et al. 2017)."""

    #: of the term in the student's loss, or ``auto``
    weight: Weight
    #: pairs [student's, teacher's]; null = the features that the last layers read
    taps: TapPairs = None
    #: by which the nearer of the two is to be nearer
    margin: Positive
    #: triples drawn of each batch
    triples: Items


#: Name of a term -> its settings; a plug-in's term adds its own (methods/distill/term.py).
TERM_SETTINGS: dict[str, type] = {
    "ce": CeTermSettings,
    "kd": KdTermSettings,
    "dkd": DkdTermSettings,
    "sinkhorn": SinkhornTermSettings,
    "hint": HintTermSettings,
    "at": AttentionTermSettings,
    "sp": SimilarityTermSettings,
    "rkd": RkdTermSettings,
    "pkt": PktTermSettings,
    "crd": CrdTermSettings,
    "triplet": TripletTermSettings,
}
#: Loss terms by name, each of its class in :data:`TERM_SETTINGS`.
Terms = Annotated[dict[str, Any], ByName(TERM_SETTINGS, "term")]
#: Terms that compare the examples of a batch -> the fewest that it needs.
LEAST_BATCH = {"sp": 2, "rkd": 2, "pkt": 2, "triplet": 3}


def check_batch(terms: Iterable[str], where: str, batch: int, key: str = "training.distill.batch_size") -> None:
    """Check that batches of ``batch`` examples (of setting ``key``) leave each of ``terms`` (the setting ``where``)
    something to compare. Raises :class:`UserError`."""
    for name in terms:
        least = LEAST_BATCH.get(name, 0)
        if batch < least:
            raise UserError(f"{batch} leaves {where}.{name} nothing to compare; relations need at least {least}", key)
