"""Settings of FedWaD's methods and of their own tasks; shared ones are in ``transport``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from knot_runner.config.settings.methods.transport import EncoderSettings, FedwadSettings, OtddSettings, TextFeatures
from knot_runner.config.settings.sizes import (
    ABOVE_ZERO,
    Deviation,
    FractionOrNone,
    ImageSide,
    Items,
    Parties,
    Positive,
    Spread,
    Steps,
)
from knot_runner.config.settings.tasks.images import ImageTaskSettings, check_pixels
from knot_runner.config.settings.tasks.task import check_missing, missing_names
from knot_runner.config.strict import require


@dataclass
class FederatedDistanceSettings:
    """One distance between two samples, with its course (FedWaD Fig. 2, 3, 8, 9)."""

    name: str
    algorithm: Literal["federated_distance"]
    #: how Algorithm 1 is run
    fedwad: FedwadSettings


@dataclass
class DatasetDistanceSettings:
    """All pairwise distances between the clients' data, or between the data sets of a task of several."""

    name: str
    algorithm: Literal["dataset_distance"]
    #: the distance between two data sets
    otdd: OtddSettings


@dataclass(kw_only=True)
class _Coreset:
    """What coresets have in common."""

    name: str
    #: federated: FedWaD between coreset and client; exact: network simplex
    distance: Literal["federated", "exact"]
    #: points of the coreset, or of each client's
    points: Items
    #: steps of the coreset, with a fresh draw of samples in each
    epochs: Steps
    #: a client's samples per epoch, at most (a seeded draw); null = all
    samples: Items | None
    #: of the coreset's points
    optimizer: Literal["sgd", "adam"]
    #: rate of the optimizer
    lr: Positive
    #: standard deviation of the first points, N(0, start_scale^2 I)
    start_scale: Deviation
    #: of distance=federated: its interpolating measures
    fedwad: FedwadSettings
    #: what stands for an image; null = its normalized pixels
    encoder: EncoderSettings | None = None
    #: what stands for a text; tasks of images do not read it
    features: TextFeatures | None = None

    def __post_init__(self) -> None:
        require(self.fedwad.privacy is None, "fedwad.privacy", "works only with method=federated_distance")


@dataclass(kw_only=True)
class CoresetSettings(_Coreset):
    """A Wasserstein coreset of all clients' data, by gradients of the distance (FedWaD 4, D.2)."""

    algorithm: Literal["coreset"]
    #: clients drawn per epoch
    participants: Parties
    #: of the participants' gradients
    aggregation: Literal["mean", "sum"]


@dataclass(kw_only=True)
class CoresetKnnSettings(_Coreset):
    """One coreset per client, of its own data; all coresets together classify by the nearest neighbor (Fig. 5, 12)."""

    algorithm: Literal["coreset_knn"]
    #: share of the training images that the encoder is trained on, and clients do not get (paper: 0.5)
    encoder_share: FractionOrNone


# --------------------------------------------------------------------------------------------------------------- tasks


@dataclass
class GaussiansSettings:
    """Two samples of Gaussians with one covariance, ``covariance`` I, and means ``offset`` apart along the diagonal."""

    name: str
    kind: Literal["gaussians"]
    source: Literal["generated"]
    #: n of the first sample; the second has n / ratio
    samples: Items
    #: how many times smaller the second sample is
    ratio: Items
    #: numbers of every sample
    dimension: Items
    #: variance of every coordinate, in both samples
    covariance: Annotated[Spread, ABOVE_ZERO]
    #: Euclidean distance of the means, which is the distributions' Wasserstein distance
    offset: Deviation

    def __post_init__(self) -> None:
        require(self.samples // self.ratio >= 1, "samples", f"{self.samples} are fewer than ratio={self.ratio}")


@dataclass
class ImageSetsSettings:
    """Several data sets of images, to be compared with each other; ``sets``: name -> its image task's settings.

    Of a set, its own ``source``, ``mean`` and ``std`` are not read: those of the task hold for all. ``embedded``: four
    sets of scikit-learn's handwritten digits, whatever ``sets`` has.
    """

    name: str
    kind: Literal["image_sets"]
    #: where the images of all sets come from
    source: Literal["embedded", "local", "hub"]
    #: sets that are left out, which is said, when none of their files is there (local): stop = no set; skip = those of
    #: ``optional``; or a list of names
    missing: list[str] | Literal["stop", "skip"]
    #: [channels, height, width] that all sets are scaled to
    shape: list[ImageSide]
    #: per channel, in units of pixel values 0..1, of all sets
    mean: list[Spread]
    #: standard deviation of each channel, in the same units
    std: list[Spread]
    #: name of a set -> its image task's settings
    sets: dict[str, ImageTaskSettings]
    #: sets that ``missing=skip`` stands for
    optional: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_pixels(self.shape, self.mean, self.std)
        require(len(self.sets) >= 2, "sets", "needs at least two data sets")
        for name, one in self.sets.items():
            channels = one.shape[0]
            require(
                channels == self.shape[0], f"sets.{name}.shape", f"{channels} channels where shape has {self.shape[0]}"
            )
        check_missing(self.missing, self.sets)

    @property
    def may_be_missing(self) -> list[str]:
        """Names of the sets that are left out when none of their files is there."""
        return missing_names(self.missing, self.optional)
