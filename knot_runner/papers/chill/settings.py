"""Settings of the temperature probe, and registration of its method family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.families import Family, register
from knot_runner.config.settings.sizes import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    Depth,
    Items,
    Positive,
    StepsOrNone,
)
from knot_runner.config.strict import require


@dataclass
class ProbeSettings:
    """Temperature probe: the effect of the softmax temperature on one model (FLex&Chill Fig. 1 to 3)."""

    name: str
    algorithm: Literal["temperature_probe"]
    #: temperatures to compare, with one step each
    temperatures: list[Positive]
    #: epochs of centralized training at temperature 1 before the probe
    warm_epochs: StepsOrNone
    #: Fig. 1: maximum images for gradients
    images: Items
    #: Fig. 2: maximum images, of which misclassified images are used
    boundary_images: Items
    #: Fig. 2: learning rate of the step
    step_lr: Positive
    #: Fig. 2: largest perturbation, in normalized pixels; images whose predicted class stays the same are skipped
    attack_limit: Positive
    #: Fig. 2: bisection steps within the first interval in which the class changes
    attack_steps: Annotated[Depth, AT_LEAST_ONE]
    #: Fig. 3: class number of the image
    shown_class: Annotated[int, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        require(len(self.temperatures) >= 1, "temperatures", "expected at least one temperature")


register(Family(
    "probe", {"temperature_probe": ProbeSettings}, ("images",),
    run="knot_runner.papers.chill.probing:run_probing",
    inspect="knot_runner.papers.chill.probing:inspect_probing",
    summary="knot_runner.papers.chill.results:probe_summary",
    result="knot_runner.papers.chill.results:ProbeResult",
))  # fmt: skip
