"""Settings of KNOT and mutual learning, of the losses that come with the package, and of the temperature probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    Depth,
    Fraction,
    Items,
    NotNegative,
    Positive,
    Steps,
    StepsOrNone,
)
from knot_runner.config.strict import ByTag, require


@dataclass
class EntropySettings:
    """Entropy between outputs: ``kl`` is KL(teacher || student), as in the paper; ``symmetric`` that of the public SA
    code, ``cross_entropy`` (base 2) that of the public ERC code."""

    name: Literal["entropy"]
    #: which of these: see above
    form: Literal["kl", "symmetric", "cross_entropy"]


def require_solvable(epsilon: float, tolerance: float) -> None:
    """Raises :class:`UserError` for a transport problem that no solver solves reliably."""
    require(epsilon >= 1e-4, "epsilon", f"{epsilon} is below 1e-4; solver=exact has no regularization")
    require(1e-12 <= tolerance <= 1e-3, "tolerance", f"{tolerance} is outside 1e-12..1e-3")


@dataclass
class SinkhornSettings:
    """Regularized transport (KNOT eq. 1). ``newton`` converges to ``tolerance``; ``geomloss`` runs its schedule with
    ``scaling`` (0.5 = as published); ``exact`` (POT), ``line`` and ``tree`` (closed forms) have no regularization."""

    name: Literal["sinkhorn"]
    #: how the transport problem is solved: see above
    solver: Literal["newton", "geomloss", "exact", "line", "tree"]
    #: weight of the entropy, in units of the transport cost; 1e-4 at least
    epsilon: float
    #: of newton: largest error of a marginal
    tolerance: float
    #: of geomloss: factor from one epsilon of its schedule to the next
    scaling: Fraction

    def __post_init__(self) -> None:
        require_solvable(self.epsilon, self.tolerance)


#: ``method.loss.name`` -> its settings; a plug-in's loss adds its own (methods/losses.py).
LOSS_SETTINGS: dict[str, type] = {"entropy": EntropySettings, "sinkhorn": SinkhornSettings}
#: A loss between the student's outputs and a teacher's, one of :data:`LOSS_SETTINGS`.
LossSettings = Annotated[Any, ByTag("name", LOSS_SETTINGS, "loss")]


@dataclass
class BiasSettings:
    """Random examples that show a model's probability bias B_k: ``texts`` of ``tokens`` pieces (paper: 100,000 of 200),
    or ``images`` of ``noise``."""

    #: random texts, of tasks of texts
    texts: Items
    #: word pieces of each random text
    tokens: Steps
    #: random images, of tasks of images
    images: Items
    #: uniform = every pixel from all values alike; shuffled = transfer images with their pixels in random places
    noise: Literal["uniform", "shuffled"]


@dataclass
class KnotSettings:
    """KNOT distillation (eq. 3): a loss, a teacher weighting, and how both are scaled."""

    name: str
    algorithm: Literal["knot"]
    #: between the student's outputs and a teacher's: one of the tables of ``method.loss``
    loss: LossSettings
    #: of the teachers, text by text: A (equal), D (by their data), U, E (distance from uniform, from their own bias),
    #: or a plug-in's
    weighting: str
    #: divide by the sum of weights (Algorithm 1 line 11) or not (eq. 3, public code)
    normalize: bool
    #: its logits are divided by it
    student_temperature: Positive
    #: their logits are divided by it
    teacher_temperature: Positive
    #: the random examples of weighting=E
    bias: BiasSettings
    #: the run's record has the bound of Theorem 5.2, too (methods/bound.py); ``knot-runner bound`` has it of any run
    bound: bool


@dataclass
class TeachersSettings:
    """Local models and the pretrained global model alone, as in the paper's Table 1."""

    name: str
    algorithm: Literal["teachers"]
    #: the random examples that show each model's bias
    bias: BiasSettings


@dataclass
class MutualSettings:
    """Deep mutual learning between KNOT's parties (Zhang et al. 2018; codistillation, Anil et al. 2018): each goes on
    with its own labels, and on the transfer set learns from what the others say of it."""

    name: str
    algorithm: Literal["mutual"]
    #: between a party's outputs and another's, as of KNOT
    loss: LossSettings
    #: of the mean of these losses over the other parties, beside a party's cross-entropy; 0 = each alone, the control
    weight: NotNegative
    #: whether the global model is one of the parties; it stays as it was pretrained otherwise
    global_model: bool


@dataclass
class ProbeSettings:
    """Figures 1 to 3 of FLex&Chill. What the paper leaves open is a setting, with our choice as its default."""

    name: str
    algorithm: Literal["temperature_probe"]
    #: at each of which one step is taken
    temperatures: list[float]
    #: epochs of central training at T=1 (``training.batch_size``, ``training.lr``) before the probe; 0 = a fresh model
    warm_epochs: StepsOrNone
    #: Fig. 1: training images whose gradients are taken, at most (paper: all 50,000 of CIFAR-10)
    images: Items
    #: Fig. 2: training images of which the misclassified are moved, at most (paper: 1,000)
    boundary_images: Items
    #: Fig. 2: rate of the one step on one image
    step_lr: Positive
    #: Fig. 2: largest perturbation tried, in normalized pixels; images that do not flip by then are left out
    attack_limit: Positive
    #: Fig. 2: halvings of the bisection, after a first interval [e, 2e]
    attack_steps: Annotated[Depth, AT_LEAST_ONE]
    #: Fig. 3: class number, from 0, of the image shown (paper: 4)
    shown_class: Annotated[int, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        require(len(self.temperatures) >= 1, "temperatures", "needs at least one")
        for value in self.temperatures:
            require(value > 0, "temperatures", f"{value} is not above 0; 1 is ordinary training")
