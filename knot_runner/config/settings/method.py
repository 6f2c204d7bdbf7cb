"""Settings of the methods and of the losses that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.settings.sizes import Fraction, Items, NotNegative, Positive, Steps
from knot_runner.config.strict import require


@dataclass
class EntropySettings:
    """``kl`` KL(teacher || student), the paper; ``symmetric`` ``cross_entropy`` (base 2): the public SA, ERC code."""

    name: Literal["entropy"]
    form: Literal["kl", "symmetric", "cross_entropy"]


@dataclass
class SinkhornSettings:
    """Regularised transport (KNOT eq. 1). ``newton`` converges to ``tolerance``; ``geomloss`` runs its schedule with
    ``scaling`` (.5 = as published); ``exact`` (POT), ``line`` and ``tree`` (closed forms) have no regularisation."""

    name: Literal["sinkhorn"]
    solver: Literal["newton", "geomloss", "exact", "line", "tree"]
    epsilon: float
    tolerance: float
    scaling: Fraction

    def __post_init__(self) -> None:
        require(self.epsilon >= 1e-4, "epsilon", f"{self.epsilon} is below 1e-4; solver=exact has no regularisation")
        require(1e-12 <= self.tolerance <= 1e-3, "tolerance", f"{self.tolerance} is outside 1e-12..1e-3")


#: Settings of the losses that come with the package; a plug-in's loss brings its own (methods/losses.py).
LOSS_SETTINGS: dict[str, type] = {"entropy": EntropySettings, "sinkhorn": SinkhornSettings}


@dataclass
class BiasSettings:
    """Random examples that show a model's probability bias B_k: ``texts`` of ``tokens`` pieces (paper: 100,000 of 200),
    or ``images`` of ``noise``."""

    texts: Items
    tokens: Steps
    images: Items = 2000
    #: uniform = every pixel from all values alike; shuffled = transfer images with their pixels in random places
    noise: Literal["uniform", "shuffled"] = "uniform"


@dataclass
class KnotSettings:
    """KNOT distillation (eq. 3): a loss, a teacher weighting, and how both are scaled."""

    name: str
    algorithm: Literal["knot"]
    loss: dict[str, Any]
    weighting: str
    #: divide by the sum of weights (Algorithm 1 line 11) or not (eq. 3, public code)
    normalise: bool
    student_temperature: Positive
    teacher_temperature: Positive
    bias: BiasSettings
    #: the run's record has the bound of Theorem 5.2, too (methods/bound.py); ``knot-runner bound`` has it of any run
    bound: bool = False


@dataclass
class TeachersSettings:
    """Local models and the pretrained global model alone, as in the paper's Table 1."""

    name: str
    algorithm: Literal["teachers"]
    bias: BiasSettings


@dataclass
class MutualSettings:
    """Deep mutual learning between KNOT's parties (Zhang et al. 2018; codistillation, Anil et al. 2018): each goes on
    with its own labels, and on the transfer set learns from what the others say of it."""

    name: str
    algorithm: Literal["mutual"]
    #: between a party's outputs and another's, as of KNOT
    loss: dict[str, Any]
    #: of the mean of these losses over the other parties, beside a party's cross-entropy; 0 = each alone, the control
    weight: NotNegative
    #: whether the global model is one of the parties; it stays as it was pretrained otherwise
    global_model: bool
