"""Settings of ``method=distill``: loss terms, teachers, schedule, share of labeled examples, and synthetic images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.terms import Terms
from knot_runner.config.settings.sizes import (
    Fraction,
    Items,
    NamedModel,
    NotNegative,
    Positive,
    Proportion,
    Steps,
    StepsOrNone,
    Width,
    between,
)
from knot_runner.config.strict import ByTag, SettingsClasses, require, without
from knot_runner.util.config_yaml import Config


@dataclass
class _Synthesis:
    """Keys of all kinds of synthesis."""

    kind: str
    #: number of images
    images: Items
    #: images per batch (kinds statistics and records) or per step
    batch_size: Items
    #: Adam steps, per batch for kinds statistics and records
    steps: Steps
    #: learning rate, of pixels or of the generator
    lr: Positive


@dataclass
class StatisticsSynthesis(_Synthesis):
    """Optimizes images to match the teacher's BatchNorm statistics (DeepInversion, Yin et al. 2020)."""

    #: weight of the cross-entropy with the intended class
    label: NotNegative
    #: weight of the distance to the running statistics
    statistics: NotNegative
    #: weight of the total variation
    tv: NotNegative
    #: weight of the squared pixels
    l2: NotNegative


@dataclass
class RecordsSynthesis(_Synthesis):
    """Optimizes images to match recorded activations (Lopes et al. 2017)."""

    #: per class: moments of logits (top), also of all named layers (all), or means and principal axes of all named
    #: layers (spectral)
    records: Literal["top", "all", "spectral"]
    #: spectral: principal axes per layer and class
    components: Items
    #: weight of the total variation
    tv: NotNegative
    #: weight of the squared pixels
    l2: NotNegative


@dataclass
class GeneratorSynthesis(_Synthesis):
    """Trains an image generator on the teacher's responses (DAFL, Chen et al. 2019)."""

    #: noise dimension
    latent: Width
    #: channels of the generator
    width: Width
    #: weight of the cross-entropy with the predicted class
    one_hot: NotNegative
    #: weight of the feature magnitude (maximized)
    activation: NotNegative
    #: weight of the entropy of the mean output (maximized)
    entropy: NotNegative


Synthesis = StatisticsSynthesis | RecordsSynthesis | GeneratorSynthesis
#: ``method.synthesis.kind`` -> its settings.
SYNTHESIS_SETTINGS: SettingsClasses = {
    "statistics": StatisticsSynthesis,
    "records": RecordsSynthesis,
    "generator": GeneratorSynthesis,
}


@dataclass
class PhaseSettings:
    """A training phase, such as FitNets' first stage, that precedes training on ``method.terms``.

    It continues from the current weights, with a new optimizer and new adapters, and keeps the last epoch's weights.
    It ignores ``epochs`` and ``milestones`` of ``training.distill``.
    """

    #: training epochs
    epochs: Steps
    #: loss terms, as ``method.terms``
    terms: Terms

    def __post_init__(self) -> None:
        require(bool(self.terms), "terms", "expected at least one term, such as {hint: {weight: 1}} for FitNets")


@dataclass
class OfflineSchedule:
    """Teachers are trained first and then fixed (Hinton et al. 2015). Without teachers, the student learns alone."""

    kind: str
    #: earlier training phases of the student, in order
    phases: list[PhaseSettings] = field(default_factory=list)


@dataclass
class MutualSchedule:
    """Students train together, each on the other students' mean output (Zhang et al. 2018)."""

    kind: str
    #: number of students
    students: Annotated[int, between(2, 64)]


@dataclass
class GenerationsSchedule:
    """Each newly initialized student learns from the previous student (Furlanello et al. 2018)."""

    kind: str
    #: number of students after the first
    generations: Steps


@dataclass
class AverageSchedule:
    """The teacher is a moving average of the student's weights (Tarvainen and Valpola 2017)."""

    kind: str
    #: decay of the average per step
    decay: Fraction
    #: warm-up epochs of the teacher's terms
    ramp: StepsOrNone


@dataclass
class SnapshotSchedule:
    """The teacher has the student's weights from the previous epoch; the first epoch has no teacher."""

    kind: str


DistillSchedule = OfflineSchedule | MutualSchedule | GenerationsSchedule | AverageSchedule | SnapshotSchedule
#: ``method.schedule.kind`` -> its settings.
SCHEDULE_SETTINGS: SettingsClasses = {
    "offline": OfflineSchedule,
    "mutual": MutualSchedule,
    "generations": GenerationsSchedule,
    "average": AverageSchedule,
    "snapshot": SnapshotSchedule,
}


@dataclass
class RunTeacher:
    """A finished run whose model is a teacher. The run id and the checksum of the weights identify the teacher."""

    kind: Literal["run"]
    name: str
    #: run ID
    run: str
    #: SHA-256 checksum (hex) of the weights
    weights: str
    folder: str
    #: model settings, as in the group ``model``
    model: Any


#: View of an image for the student: one gray channel, edges (gradients of gray values), or half resolution.
View = Literal["none", "gray", "edges", "half"]


@dataclass
class DistillSettings:
    """Knowledge distillation with a weighted sum of loss ``terms``."""

    name: str
    algorithm: str
    #: term name -> its settings
    terms: Terms
    #: training order of teachers and students, by ``kind``
    schedule: Annotated[DistillSchedule, ByTag(SCHEDULE_SETTINGS, "schedule", "kind")]
    #: model file that the ``teachers`` of a method file refer to; null: cnn_16 for images, bert_mini for texts
    teacher: str | None
    #: teachers for schedule=offline: names of model files, or finished runs as ``run:ID``
    teachers: list[NamedModel]
    #: share of training examples with labels for the student
    labeled: Proportion
    #: share of images for epoch selection; null: 0.1 if a stage selects its best epoch; text tasks have validation sets
    valid: Fraction | None
    #: target ratio of a term with ``weight=auto`` to the cross-entropy on the first batches
    auto_ratio: Positive
    #: transformation of the student's images: one gray channel, edges (gradients of gray values), or half resolution
    view: View
    #: train the student on images synthesized from the teacher, by ``kind``; null uses real images
    synthesis: Annotated[Synthesis, ByTag(SYNTHESIS_SETTINGS, "synthesis", "kind")] | None = None

    def __post_init__(self) -> None:
        require(bool(self.terms), "terms", "expected at least one term. To train on labels only, use {ce: {weight: 1}}")


def teacher_names(count: int) -> list[str]:
    """Return the names of ``count`` teachers: ["teacher"] for one, ["teacher 1", "teacher 2", ...] for several."""
    if count == 1:
        return ["teacher"]
    return [f"teacher {number + 1}" for number in range(count)]


def counted_teachers(method: Config) -> Config:
    """Return the settings of ``method=distill`` from which the run id is computed.

    The setting ``teacher`` is left out, because ``teachers`` contains its value. A teacher that is a finished run is
    reduced to its kind, its run id and the checksum of its weights.
    """
    teachers = []
    for teacher in method["teachers"]:
        if isinstance(teacher, dict) and teacher.get("kind") == "run":
            teacher = without(teacher, "name", "folder", "model")
        teachers.append(teacher)
    return without(method, "teacher") | {"teachers": teachers}
