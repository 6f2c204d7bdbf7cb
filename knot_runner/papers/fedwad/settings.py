"""FedWaD's methods and tasks: their settings, and their entries in the tables of families and kinds of task.

Settings that clustering also reads are in :mod:`knot_runner.config.settings.methods.transport`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from knot_runner.config.settings.families import DIGITS_NOTE, TASK_KINDS, Family, TaskKind, register
from knot_runner.config.settings.image_tasks import ImageTaskSettings, check_pixels
from knot_runner.config.settings.methods.transport import EncoderSettings, FedwadSettings, OtddSettings, TextFeatures
from knot_runner.config.settings.partition import Centralized
from knot_runner.config.settings.run_id import UNREAD_KEYS
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
from knot_runner.config.settings.text_tasks import check_missing, missing_names
from knot_runner.config.strict import require, without
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import Misfit

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


@dataclass
class FederatedDistanceSettings:
    """Federated Wasserstein distance between two samples, after each iteration (FedWaD Fig. 2, 3, 8, 9)."""

    name: str
    algorithm: Literal["federated_distance"]
    #: settings of Algorithm 1
    fedwad: FedwadSettings


@dataclass
class DatasetDistanceSettings:
    """Pairwise distances between the data of clients, or between data sets."""

    name: str
    algorithm: Literal["dataset_distance"]
    #: distance between two data sets
    otdd: OtddSettings


@dataclass(kw_only=True)
class _Coreset:
    """Keys of all coreset methods."""

    name: str
    #: FedWaD, or exact transport by network simplex
    distance: Literal["federated", "exact"]
    #: points per coreset
    points: Items
    #: optimization steps; each draws new samples
    epochs: Steps
    #: maximum samples per client and epoch; null uses all
    samples: Items | None
    #: learning rate of Adam, the optimizer of the points
    lr: Positive
    #: settings for distance=federated
    fedwad: FedwadSettings
    #: autoencoder for images; null uses normalized pixels
    encoder: EncoderSettings | None = None
    #: features of texts
    features: TextFeatures | None = None

    def __post_init__(self) -> None:
        require(self.fedwad.privacy is None, "fedwad.privacy", "requires method=federated_distance. Remove this key")


@dataclass(kw_only=True)
class CoresetSettings(_Coreset):
    """One Wasserstein coreset of the data of all clients (FedWaD App. D.2)."""

    algorithm: Literal["coreset"]
    #: clients per epoch, or all if there are fewer
    participants: Parties


@dataclass(kw_only=True)
class CoresetKnnSettings(_Coreset):
    """One coreset per client, combined in a nearest-neighbor classifier (FedWaD Fig. 5, 12)."""

    algorithm: Literal["coreset_knn"]
    #: share of training images for the encoder, withheld from clients (paper: 0.5)
    encoder_share: FractionOrNone


# --------------------------------------------------------------------------------------------------------------- tasks


@dataclass
class GaussiansSettings:
    """Two samples, drawn from Gaussians with equal covariance and different means."""

    name: str
    kind: Literal["gaussians"]
    source: Literal["generated"]
    #: size of the first sample
    samples: Items
    #: ratio of sample sizes, first to second
    ratio: Items
    #: dimension of the samples
    dimension: Items
    #: variance of each coordinate
    covariance: Annotated[Spread, ABOVE_ZERO]
    #: distance between the means; equals the Wasserstein distance
    offset: Deviation

    def __post_init__(self) -> None:
        found = f"expected at least {self.ratio} (the value of task.ratio), got {self.samples}"
        require(self.samples >= self.ratio, "samples", found)


@dataclass
class ImageSetsSettings:
    """Several image data sets to compare.

    The task's ``source``, ``mean`` and ``std`` replace those of each data set. ``source=embedded`` uses four sets of
    scikit-learn's digits instead of ``sets``.
    """

    name: str
    kind: Literal["image_sets"]
    #: source of all sets
    source: Literal["embedded", "local", "hub"]
    #: missing local sets to leave out, with a message: none (stop), those in ``optional`` (skip), or a list
    missing: list[str] | Literal["stop", "skip"]
    #: [channels, height, width] of all sets after scaling
    shape: list[ImageSide]
    #: mean of each channel, for pixel values from 0 to 1
    mean: list[Spread]
    #: standard deviation of each channel
    std: list[Spread]
    #: set name -> image task settings
    sets: dict[str, ImageTaskSettings]
    #: sets that ``missing=skip`` leaves out
    optional: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_pixels(self.shape, self.mean, self.std)
        require(len(self.sets) >= 2, "sets", "expected at least two data sets")
        wanted = self.shape[0]
        for name, image_task in self.sets.items():
            channels = image_task.shape[0]
            require(channels == wanted, f"sets.{name}.shape", f"has {channels} channels, but task.shape has {wanted}")
        check_missing(self.missing, self.sets)

    @property
    def may_be_missing(self) -> list[str]:
        """Return the names of the sets that are left out if they have no files."""
        return missing_names(self.missing, self.optional)


# ----------------------------------------------------------------------------------------------------- registration


def counted_distance(method: Config) -> Config:
    """Return the settings of ``method`` that affect the run id.

    In exact mode, the setting ``support`` has no effect and is removed.
    """
    fedwad = method["fedwad"]
    if fedwad["mode"] == "exact":
        return method | {"fedwad": without(fedwad, "support")}
    return method


def check_clients(settings: Settings) -> None:
    """Check that the partition has at least two clients.

    Raises:
        Misfit: The partition has one client.
    """
    if isinstance(settings.partition, Centralized):
        method = f"method={settings.method.name}"
        raise Misfit("partition=centralized", method, "a distance requires at least two clients")


UNREAD_KEYS["distance", "exact"] = {"fedwad"}
TASK_KINDS.update(
    gaussians=TaskKind(GaussiansSettings, "federated_distance", "compares samples of Gaussians"),
    image_sets=TaskKind(ImageSetsSettings, "dataset_distance", "compares whole sets of images and trains no classifier",
                        DIGITS_NOTE, check_files="knot_runner.papers.fedwad.image_sets:check_set_files"),
)  # fmt: skip
register(Family(
    "distance", {"federated_distance": FederatedDistanceSettings}, ("gaussians",),
    run="knot_runner.papers.fedwad.distance:run_distance",
    inspect="knot_runner.papers.fedwad.distance:inspect_distance",
    summary="knot_runner.papers.fedwad.results:distance_summary",
    result="knot_runner.papers.fedwad.results:DistanceResult",
    counted="knot_runner.papers.fedwad.settings:counted_distance",
    preload=("knot_runner.papers.fedwad.distance",), trains=False, on_gpu=False,
))  # fmt: skip
register(Family(
    "matrix", {"dataset_distance": DatasetDistanceSettings}, ("images", "image_sets", "texts"),
    run="knot_runner.papers.fedwad.matrix:run_matrix",
    inspect="knot_runner.papers.fedwad.matrix:inspect_matrix",
    summary="knot_runner.papers.fedwad.results:matrix_summary",
    result="knot_runner.papers.fedwad.results:MatrixResult",
    check="knot_runner.papers.fedwad.settings:check_clients", trains=False, on_gpu=False,
))  # fmt: skip
register(Family(
    "coreset", {"coreset": CoresetSettings}, ("images", "texts"),
    run="knot_runner.papers.fedwad.coreset:run_coreset",
    inspect="knot_runner.papers.fedwad.coreset:inspect_coreset",
    summary="knot_runner.papers.fedwad.results:coreset_summary",
    result="knot_runner.papers.fedwad.results:CoresetResult", trains=False, on_gpu=False,
))  # fmt: skip
register(Family(
    "knn", {"coreset_knn": CoresetKnnSettings}, ("images", "texts"),
    run="knot_runner.papers.fedwad.coreset:run_coreset_knn",
    inspect="knot_runner.papers.fedwad.coreset:inspect_coreset",
    summary="knot_runner.report.records.run_summary:metrics_summary",
    result="knot_runner.papers.fedwad.results:KnnResult", trains=False, on_gpu=False,
))  # fmt: skip
