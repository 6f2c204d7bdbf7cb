"""Settings of the temperature probe: what one training step does to a model at each temperature (FLex&Chill 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.sizes import AT_LEAST_ONE, NOT_NEGATIVE, Depth, Items, Positive, StepsOrNone
from knot_runner.config.strict import require


@dataclass
class ProbeSettings:
    """Figures 1 to 3 of FLex&Chill. What the paper leaves open is a setting, with our choice as its default."""

    name: str
    algorithm: Literal["temperature_probe"]
    #: at each of which one step is taken
    temperatures: list[float]
    #: epochs of central training at T=1 (``training.batch``, ``training.lr``) before the probe; 0 = a fresh model
    warm_epochs: StepsOrNone
    #: Fig. 1: training images whose gradients are taken, at most (paper: all 50,000 of CIFAR-10)
    images: Items
    #: Fig. 1: gradient with respect to the input layer's weights, or to the input pixels (the paper leaves it open)
    gradient: Literal["weights", "pixels"]
    #: Fig. 2: training images of which the misclassified are moved, at most (paper: 1,000)
    boundary_images: Items
    #: Fig. 2: rate of the one step on one image
    step_lr: Positive
    #: Fig. 2: the attack ascends the loss of the model's own decision, which it so leaves, or of the true label
    attack_label: Literal["decision", "truth"]
    #: Fig. 2: temperature in the loss that the attack ascends
    attack_temperature: Positive
    #: Fig. 2: largest perturbation tried, in normalised pixels; images that do not flip by then are left out
    attack_limit: Positive
    #: Fig. 2: halvings of the bisection, after a first interval [e, 2e]
    attack_steps: Annotated[Depth, AT_LEAST_ONE]
    #: Fig. 3: class number, from 0, of the image shown (paper: 4)
    shown_class: Annotated[int, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        require(len(self.temperatures) >= 1, "temperatures", "needs at least one")
        for value in self.temperatures:
            require(value > 0, "temperatures", f"{value} is not above 0; 1 is ordinary training")
