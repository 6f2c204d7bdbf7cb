"""Settings of the temperature probe: what one training step does to a model at each temperature (FLex&Chill 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knot_runner.config.settings.sizes import Depth, Items, Steps
from knot_runner.config.strict import require


@dataclass
class ProbeSettings:
    """Figures 1 to 3 of FLex&Chill. What the paper leaves open is a setting, with our choice as its default."""

    name: str
    algorithm: Literal["temperature_probe"]
    temperatures: list[float]
    #: epochs of central training at T=1 (``training.batch``, ``training.lr``) before the probe; 0 = a fresh model
    warm_epochs: Steps
    #: Fig. 1: training images whose gradients are taken, at most (paper: all 50,000 of CIFAR-10)
    images: Items
    #: Fig. 1: gradient with respect to the input layer's weights, or to the input pixels (the paper leaves it open)
    gradient: Literal["weights", "pixels"]
    #: Fig. 2: training images of which the misclassified are moved, at most (paper: 1,000)
    boundary_images: Items
    #: Fig. 2: rate of the one step on one image
    step_lr: float
    #: Fig. 2: the attack ascends the loss of the model's own decision, which it so leaves, or of the true label
    attack_label: Literal["decision", "truth"]
    #: Fig. 2: temperature in the loss that the attack ascends
    attack_temperature: float
    #: Fig. 2: largest perturbation tried, in normalised pixels; images that do not flip by then are left out
    attack_limit: float
    #: Fig. 2: halvings of the bisection, after a first interval [e, 2e]
    attack_steps: Depth
    #: Fig. 3: class number, from 0, of the image shown (paper: 4)
    shown_class: int

    def __post_init__(self) -> None:
        require(len(self.temperatures) >= 1, "temperatures", "needs at least one")
        for value in self.temperatures:
            require(value > 0, "temperatures", f"{value} is not above 0; 1 is ordinary training")
        require(self.warm_epochs >= 0, "warm_epochs", f"{self.warm_epochs} is negative")
        for key in ("images", "boundary_images", "attack_steps"):
            require(getattr(self, key) >= 1, key, f"{getattr(self, key)} is not at least 1")
        for key in ("step_lr", "attack_temperature", "attack_limit"):
            require(getattr(self, key) > 0, key, f"{getattr(self, key)} is not above 0")
        require(self.shown_class >= 0, "shown_class", f"{self.shown_class} is negative")
