"""Settings of ``method=distill``: loss terms, teachers, a schedule, the share of the examples that has labels; and how
images are made from a trained teacher, for a student that sees no real one (``method.synthesis``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.terms import Terms
from knot_runner.config.settings.sizes import Fraction, Items, NotNegative, Positive, Steps, StepsOrNone, Width
from knot_runner.config.strict import ByTag, Holds, require


@dataclass
class StatisticsSynthesis:
    """Images that the teacher's batch normalization takes for its training images (Yin et al. 2020, DeepInversion):
    Adam on the pixels, class by class in turn."""

    kind: Literal["statistics"]
    #: images made in all
    images: Items
    #: images made at a time: their means and variances are compared
    batch_size: Items
    #: of Adam, on each batch of images
    steps: Steps
    #: rate of Adam on the pixels
    lr: Positive
    #: weight of the cross-entropy with the class that an image is to be of
    label: NotNegative
    #: weight of the squared differences from the running means and variances
    statistics: NotNegative
    #: weight of the difference between neighboring pixels
    tv: NotNegative
    #: weight of the squares of normalized pixels
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
    batch_size: Items
    #: of Adam, on each batch of images
    steps: Steps
    #: rate of Adam on the pixels
    lr: Positive
    #: weight of the difference between neighboring pixels
    tv: NotNegative
    #: weight of the squares of normalized pixels
    l2: NotNegative


@dataclass
class GeneratorSynthesis:
    """Images of a generator that the teacher is sure of, that move it, and that are of all classes (Chen et al. 2019,
    DAFL)."""

    kind: Literal["generator"]
    #: images sampled from the trained generator in all
    images: Items
    #: images of a training step
    batch_size: Items
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


Synthesis = StatisticsSynthesis | RecordsSynthesis | GeneratorSynthesis
#: ``method.synthesis.kind`` -> its settings.
SYNTHESIS_SETTINGS: dict[str, type] = {
    "statistics": StatisticsSynthesis,
    "records": RecordsSynthesis,
    "generator": GeneratorSynthesis,
}


@dataclass
class PhaseSettings:
    """A training of the student that goes before: so many epochs on ``terms`` of its own, as FitNets' first stage is on
    the hint alone. The rest is as ``training.distill`` says, but for milestones, and the last epoch is kept."""

    #: epochs of this training
    epochs: Steps
    #: loss terms of this training, as in ``method.terms``
    terms: Terms

    def __post_init__(self) -> None:
        require(bool(self.terms), "terms", "has none; {hint: {weight: 1}} is FitNets' first stage")


@dataclass
class OfflineSchedule:
    """Teachers are trained first and stay as they are (Hinton et al. 2015). Without any, the student learns alone.

    Before it learns by ``method.terms``, the student goes through ``phases`` in their order (Romero et al. 2015). Each
    begins with the weights of the one before, a new optimizer and new adapters.
    """

    kind: Literal["offline"]
    #: trainings of the student that go before, in their order
    phases: list[PhaseSettings] = field(default_factory=list)


@dataclass
class MutualSchedule:
    """Students of one architecture and different starts train together and teach each other (Zhang et al. 2018):
    each is a student of the mean over the others, and all take a step at once."""

    kind: Literal["mutual"]
    #: how many students teach each other
    students: Annotated[int, Holds(lambda value: 2 <= value <= 64, "is not in 2..64")]


@dataclass
class GenerationsSchedule:
    """Born-again networks (Furlanello et al. 2018): the first student learns alone, and each further one, with another
    start, from the one before it."""

    kind: Literal["generations"]
    #: students after the first
    generations: Steps


@dataclass
class AverageSchedule:
    """The teacher is the exponential moving average of the student's own weights (Tarvainen and Valpola 2017)."""

    kind: Literal["average"]
    #: share of the average that a step keeps
    decay: Fraction
    #: epochs over which the weights of the teacher's terms rise from 0
    ramp: StepsOrNone


@dataclass
class SnapshotSchedule:
    """The teacher is the student as it was at the end of the previous epoch; the first epoch has none."""

    kind: Literal["snapshot"]


DistillSchedule = OfflineSchedule | MutualSchedule | GenerationsSchedule | AverageSchedule | SnapshotSchedule
#: ``method.schedule.kind`` -> its settings.
SCHEDULE_SETTINGS: dict[str, type] = {
    "offline": OfflineSchedule,
    "mutual": MutualSchedule,
    "generations": GenerationsSchedule,
    "average": AverageSchedule,
    "snapshot": SnapshotSchedule,
}


@dataclass
class RunTeacher:
    """A teacher that a finished run ended with. What tells it from others is the run's id and the weights' digest, not
    where it lies."""

    kind: Literal["run"]
    name: str
    #: its run id
    run: str
    #: sha256 (hex) of its weights
    weights: str
    folder: str
    #: settings of its model, as a group ``model`` has them
    model: Any


#: What a student may see of an image: gray = one channel of three, edges = how steep its gray is, half = every 2x2
#: pixels as one.
View = Literal["none", "gray", "edges", "half"]


@dataclass
class DistillSettings:
    """Knowledge distillation: the student minimizes the weighted sum of ``terms``."""

    name: str
    algorithm: Literal["distill"]
    #: name of a term -> its settings; a plug-in's term brings its own
    terms: Terms
    #: when teachers and students train, by ``kind``
    schedule: Annotated[DistillSchedule, ByTag("kind", SCHEDULE_SETTINGS, "schedule")]
    #: the model, by the name of its YAML file, that a method's own ``teachers`` are
    teacher: str
    #: of the offline schedule: models by the names of their YAML files, or finished runs as ``run:ID``; composing puts
    #: their settings in their place
    teachers: list[Any]
    #: share of the training examples whose labels the student sees; teachers see all
    labeled: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")]
    #: share of the images held out of training, which epochs are selected on; null = 0.1 if a stage selects its best
    #: epoch; texts have valid parts of their own
    valid: Fraction | None
    #: what ``weight: auto`` makes of a term: its share of the cross-entropy on the first batches
    auto_ratio: Positive
    #: what the student sees of every image; teachers see the original
    view: View
    #: the student sees images made from the teacher instead of real ones, by ``kind``; null = real
    synthesis: Annotated[Synthesis, ByTag("kind", SYNTHESIS_SETTINGS, "synthesis")] | None = None

    def __post_init__(self) -> None:
        require(bool(self.terms), "terms", "has none; {ce: {weight: 1}} learns from labels alone")


def teacher_names(count: int) -> list[str]:
    """Returns the party names of a distillation's teachers."""
    return ["teacher"] if count == 1 else [f"teacher {number + 1}" for number in range(count)]
