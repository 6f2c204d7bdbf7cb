"""Settings of ``method.synthesis``: how images are made from a trained teacher, for a student that sees no real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knot_runner.config.settings.sizes import Items, NotNegative, Positive, Steps, Width


@dataclass
class StatisticsSynthesis:
    """Images that the teacher's batch normalisation takes for its training images (Yin et al. 2020, DeepInversion):
    Adam on the pixels, class by class in turn."""

    kind: Literal["statistics"]
    #: made in all, and at a time
    images: Items
    batch: Items
    #: of Adam, on each batch of images
    steps: Steps
    lr: Positive
    #: weights of the cross-entropy with the image's class, of the running means and variances, of the difference
    #: between neighbouring pixels, and of the pixels' squares
    label: NotNegative
    statistics: NotNegative
    tv: NotNegative
    l2: NotNegative


@dataclass
class RecordsSynthesis:
    """Images on which the teacher's activations are samples of what was recorded of them (Lopes et al. 2017)."""

    kind: Literal["records"]
    #: what is released, of each class: top = means and covariance of the logits; all = besides means and variances of
    #: every named tap; spectral = means and the first ``components`` principal axes of every named tap
    records: Literal["top", "all", "spectral"]
    components: Items
    images: Items
    batch: Items
    steps: Steps
    lr: Positive
    tv: NotNegative
    l2: NotNegative


@dataclass
class GeneratorSynthesis:
    """Images of a generator that the teacher is sure of, that move it, and that are of all classes (Chen et al. 2019,
    DAFL)."""

    kind: Literal["generator"]
    images: Items
    #: of a step
    batch: Items
    #: of Adam, on the generator's weights
    steps: Steps
    lr: Positive
    #: numbers that an image is made from, and channels of the generator's maps
    latent: Width
    width: Width
    #: weights of the cross-entropy with the teacher's own class, of its features' size, and of the entropy of its mean
    one_hot: NotNegative
    activation: NotNegative
    entropy: NotNegative


SynthesisSettings = StatisticsSynthesis | RecordsSynthesis | GeneratorSynthesis

#: ``method.synthesis.kind`` -> its settings.
SYNTHESIS_SETTINGS: dict[str, type] = {
    "statistics": StatisticsSynthesis,
    "records": RecordsSynthesis,
    "generator": GeneratorSynthesis,
}
