"""Settings of KNOT, of mutual learning between parties, and of the losses that compare the outputs of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import Fraction, Items, NotNegative, Positive, Steps, at_least, between
from knot_runner.config.strict import ByTag, SettingsClasses


@dataclass
class EntropySettings:
    """KL divergence or cross-entropy between outputs."""

    name: str
    #: KL(teacher, student) as in the paper, symmetric (public SA code), or cross-entropy with base 2 (public ERC code)
    form: Literal["kl", "symmetric", "cross_entropy"]


#: Name of a transport solver; null selects one by the labels.
SolverName = Literal["newton", "geomloss", "exact", "line", "tree"] | None
#: Entropy regularization, relative to the cost; largest marginal error of the Newton solver.
Epsilon = Annotated[float, at_least(1e-4, " (for epsilon 0, use solver=exact)")]
Tolerance = Annotated[float, between(1e-12, 1e-3)]


@dataclass
class SinkhornSettings:
    """Optimal transport loss (KNOT eq. 1)."""

    name: str
    #: regularized (newton, geomloss) or unregularized (exact, line, tree); null: tree for images without coordinates,
    #: otherwise newton
    solver: SolverName
    #: entropy regularization, relative to the cost; at least 1e-4
    epsilon: Epsilon
    #: newton: largest marginal error
    tolerance: Tolerance
    #: geomloss: factor between epsilons (published: 0.5)
    scaling: Fraction


#: ``method.loss.name`` -> class of the settings. The loss of a plug-in adds a class (methods/losses.py).
LOSS_SETTINGS: SettingsClasses = {"entropy": EntropySettings, "sinkhorn": SinkhornSettings}
#: A loss between the student's outputs and a teacher's, one of :data:`LOSS_SETTINGS`.
LossSettings = Annotated[Any, ByTag(LOSS_SETTINGS, "loss", "name")]


@dataclass
class BiasSettings:
    """Random examples to estimate a model's bias B_k."""

    #: random texts, for text tasks
    texts: Items
    #: word pieces per text
    tokens: Steps
    #: random images, for image tasks
    images: Items
    #: uniform pixels, or transfer images with shuffled pixels
    noise: Literal["uniform", "shuffled"]


@dataclass
class KnotSettings:
    """KNOT distillation (eq. 3)."""

    name: str
    algorithm: str
    #: loss between student and teacher outputs
    loss: LossSettings
    #: teacher weights per example: A (equal), D (data size), U (distance from uniform), E (distance from the teacher's
    #: bias), or a plug-in's
    weighting: str
    #: divide by the sum of weights (Algorithm 1); false follows eq. 3 and the public code
    normalize: bool
    #: temperature of the student
    student_temperature: Positive
    #: temperature of the teachers
    teacher_temperature: Positive
    #: random examples for weighting=E
    bias: BiasSettings
    #: record the bound of Theorem 5.2; ``knot-runner bound`` computes it for any run
    bound: bool


@dataclass
class TeachersSettings:
    """Trains local models and pretrains the global model, without distillation (KNOT, Table 1)."""

    name: str
    algorithm: str
    #: random examples to estimate each model's bias
    bias: BiasSettings


@dataclass
class MutualSettings:
    """Mutual learning between KNOT's parties (Zhang et al. 2018, Anil et al. 2018).

    Each party learns from its labeled examples and the other parties' outputs for the transfer set.
    """

    name: str
    algorithm: str
    #: loss between the outputs of two parties
    loss: LossSettings
    #: weight of the mean loss over the other parties; 0 trains each alone
    weight: NotNegative
    #: train the global model as a party; false keeps it as pretrained
    global_model: bool
