"""Settings of the loss terms of ``method=distill``, with one dataclass per term (``method.terms.NAME``).

``docs/distillation-losses.md`` describes the terms. ``conf/base/term/NAME.yaml`` has the default values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.knot import Epsilon, SolverName, Tolerance
from knot_runner.config.settings.sizes import (
    AT_LEAST_ONE,
    Channels,
    Fraction,
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    StepsOrNone,
    Temperature,
)
from knot_runner.config.strict import AtMost, ByName, SettingsClasses, require
from knot_runner.util.errors import UserError

#: Factor of a term's loss. ``auto``: the run computes the factor from the values of the terms on the first batches.
Weight = Literal["auto"] | NotNegative
#: Compared pairs of intermediate layers ("taps"): [[layer of the student, layer of the teacher], ...]; null selects the
#: default layers of the term
TapPairs = list[list[str]] | None


@dataclass(kw_only=True)
class _OfTaps:
    """A term that compares intermediate layers."""

    #: weight of the term; auto scales it by ``method.auto_ratio``
    weight: Weight
    #: pairs of student and teacher layers; null uses the default layers of the term
    taps: TapPairs = None

    def __post_init__(self) -> None:
        if self.taps is None:
            return
        wanted = "[tap of the student, tap of the teacher]"
        require(self.taps != [], "taps", f"expected at least one pair {wanted}, or null for default pairs")
        for pair in self.taps:
            require(len(pair) == 2, "taps", f"expected pairs {wanted}, got {pair}")


@dataclass
class CeTermSettings:
    """Cross-entropy with true labels."""

    #: weight of the term; auto scales it by ``method.auto_ratio``
    weight: Weight
    #: label smoothing
    label_smoothing: FractionOrNone


@dataclass
class KdTermSettings:
    """KL divergence from softened teacher outputs (Hinton et al. 2015)."""

    #: weight of the term; auto scales it by ``method.auto_ratio``
    weight: Weight
    #: softmax temperature of both models
    temperature: Temperature
    #: multiply by temperature^2 to keep the gradient scale
    temperature_squared: bool
    #: KL divergence or cross-entropy; equal gradients
    form: Literal["kl", "cross_entropy"]
    #: for several teachers: average probabilities or logits
    mean: Literal["probabilities", "logits"]


@dataclass
class DkdTermSettings:
    """Decoupled distillation of target and non-target classes (Zhao et al. 2022)."""

    #: weight of the term; auto scales it by ``method.auto_ratio``
    weight: Weight
    #: weight of the target class
    alpha: NotNegative
    #: weight of the other classes
    beta: NotNegative
    #: softmax temperature of both models
    temperature: Temperature
    #: epochs of linear warm-up; 0 disables it
    warmup: StepsOrNone


@dataclass
class SinkhornTermSettings:
    """Optimal transport between student and teacher outputs (KNOT eq. 1)."""

    #: weight of the term; auto scales it by ``method.auto_ratio``
    weight: Weight
    #: softmax temperature of both models
    temperature: Temperature
    #: regularized (newton, geomloss) or unregularized (exact, line, tree); null: tree for images without coordinates,
    #: otherwise newton
    solver: SolverName
    #: entropy regularization, relative to the cost; at least 1e-4
    epsilon: Epsilon
    #: newton: largest marginal error
    tolerance: Tolerance
    #: geomloss: factor between epsilons (published: 0.5)
    scaling: Fraction


@dataclass(kw_only=True)
class HintTermSettings(_OfTaps):
    """Distance between intermediate features, with a trained adapter (FitNets, Romero et al. 2015)."""

    #: loss; ce treats channels as logits
    form: Literal["l2", "l1", "ce"]
    #: adapter if shapes differ, or always
    adapter: Literal["auto", "always"]


@dataclass(kw_only=True)
class AttentionTermSettings(_OfTaps):
    """Attention transfer (Zagoruyko and Komodakis 2017)."""

    #: exponent of activations in attention maps
    p: Annotated[float, AtMost(16), AT_LEAST_ONE]


@dataclass(kw_only=True)
class SimilarityTermSettings(_OfTaps):
    """Similarities between examples of a batch (Tung and Mori 2019)."""


@dataclass(kw_only=True)
class RkdTermSettings(_OfTaps):
    """Distances and angles between examples of a batch (Park et al. 2019)."""

    #: weight of pairwise distances
    distance: NotNegative
    #: weight of angles in triples
    angle: NotNegative


@dataclass(kw_only=True)
class PktTermSettings(_OfTaps):
    """Probability distributions over neighbors (Passalis and Tefas 2018)."""


@dataclass(kw_only=True)
class CrdTermSettings(_OfTaps):
    """Contrastive representation distillation (Tian et al. 2020)."""

    #: contrastive temperature
    temperature: Temperature
    #: negative examples
    negatives: Items
    #: embedding dimension
    dim: Channels
    #: momentum of the memory bank
    momentum: FractionOrNone


@dataclass(kw_only=True)
class TripletTermSettings(_OfTaps):
    """Order of distances in triples of examples, decided by the teachers' majority vote (You et al. 2017)."""

    #: margin between distances
    margin: Positive
    #: triples per batch
    triples: Items


#: Name of a term -> class of the term's settings. A plug-in's term adds a class (methods/distill/term.py).
TERM_SETTINGS: SettingsClasses = {
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
#: Loss terms by name, with the classes of :data:`TERM_SETTINGS`.
Terms = Annotated[dict[str, Any], ByName(TERM_SETTINGS, "term")]
#: Term that compares the examples of a batch with each other -> minimum number of examples in a batch.
LEAST_BATCH = {"sp": 2, "rkd": 2, "pkt": 2, "triplet": 3}


def check_batch(terms: Iterable[str], where: str, batch: int, key: str = "training.distill.batch_size") -> None:
    """Check that a batch is large enough for each of the loss terms.

    Args:
        terms: Names of loss terms.
        where: Name of the setting that contains the terms, to show in the error message.
        batch: Number of examples in a batch.
        key: Name of the batch size setting, to show in the error message.

    Raises:
        UserError: A term needs a larger batch.
    """
    for name in terms:
        least = LEAST_BATCH.get(name, 0)
        if batch < least:
            raise UserError(f"{batch} is too small for {where}.{name}. Use at least {least}", key)
