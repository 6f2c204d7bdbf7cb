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
    #: images made in all
    images: Items
    #: images made at a time: their means and variances are compared
    batch: Items
    #: of Adam, on each batch of images
    steps: Steps
    #: rate of Adam on the pixels
    lr: Positive
    #: weight of the cross-entropy with the class that an image is to be of
    label: NotNegative
    #: weight of the squared differences from the running means and variances
    statistics: NotNegative
    #: weight of the difference between neighbouring pixels
    tv: NotNegative
    #: weight of the squares of normalised pixels
    l2: NotNegative


@dataclass
class RecordsSynthesis:
    """Images on which the teacher's activations are samples of what was recorded of them (Lopes et al. 2017)."""

    kind: Literal["records"]
    #: what is released, of each class: top = means and covariance of the logits; all = besides means and variances of
    #: every named tap; spectral = means and the first ``components`` principal axes of every named tap
    records: Literal["top", "all", "spectral"]
    #: of records=spectral: principal axes of each tap and class
    components: Items
    #: images made in all
    images: Items
    #: images made at a time
    batch: Items
    #: of Adam, on each batch of images
    steps: Steps
    #: rate of Adam on the pixels
    lr: Positive
    #: weight of the difference between neighbouring pixels
    tv: NotNegative
    #: weight of the squares of normalised pixels
    l2: NotNegative


@dataclass
class GeneratorSynthesis:
    """Images of a generator that the teacher is sure of, that move it, and that are of all classes (Chen et al. 2019,
    DAFL)."""

    kind: Literal["generator"]
    #: images sampled from the trained generator in all
    images: Items
    #: images of a training step
    batch: Items
    #: of Adam, on the generator's weights
    steps: Steps
    #: rate of Adam on the generator's weights
    lr: Positive
    #: numbers that an image is made from
    latent: Width
    #: channels of the generator's maps
    width: Width
    #: weight of the cross-entropy with the teacher's own class
    one_hot: NotNegative
    #: weight of the size of the teacher's features, which is to be large
    activation: NotNegative
    #: weight of the entropy of the teacher's mean output, which is to be large
    entropy: NotNegative


#: ``method.synthesis.kind`` -> its settings.
SYNTHESIS_SETTINGS: dict[str, type] = {
    "statistics": StatisticsSynthesis,
    "records": RecordsSynthesis,
    "generator": GeneratorSynthesis,
}
