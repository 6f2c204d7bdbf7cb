"""Settings of federated optimal transport (FedWaD): one distance, a distance between data sets, clusters, coresets; and
what stands for a text where data are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.sizes import (
    ABOVE_ZERO,
    Deviation,
    Fraction,
    Items,
    Parties,
    Positive,
    Spread,
    Steps,
    StepsOrNone,
    Width,
)
from knot_runner.config.strict import AtMost, Holds, require


@dataclass
class PrivacySettings:
    """Differential privacy of every message by itself: a client's samples are clipped to norm ``clip``, and each
    measure and distance it sends is released with Gaussian noise for (``epsilon``, ``delta``) (Balle and Wang 2018)."""

    mechanism: Literal["gaussian"]
    #: epsilon of each message by itself
    epsilon: Positive
    #: delta of each message by itself
    delta: Fraction
    #: norm that samples are clipped to
    clip: Annotated[Spread, ABOVE_ZERO]


@dataclass
class FedwadSettings:
    """FedWaD, Algorithm 1: one federated Wasserstein distance."""

    #: interpolating measures: exact (eq. 5, their support grows) or approximate (eq. 10, ``support`` points)
    mode: Literal["exact", "approximate"]
    #: S, points of the first interpolating measure
    support: Items
    #: K, the iterations of Algorithm 1
    iterations: Steps
    #: place on the geodesic of every interpolation; random: drawn from U(0, 1) for each one (public code of FL, OTDD)
    t: float | Literal["random"]
    #: standard deviation of the first interpolating measure's points, N(0, start_scale^2 I)
    start_scale: Deviation
    #: noise on what clients send; null = none
    privacy: PrivacySettings | None = None

    def __post_init__(self) -> None:
        right = self.t == "random" or 0 < self.t < 1
        require(right, "t", f"{self.t} is neither 'random' nor between 0 and 1")
        noised = self.privacy is not None and self.mode == "exact"
        require(not noised, "privacy", "exact interpolating measures show every sample; mode=approximate is right")


@dataclass
class EncoderSettings:
    """An autoencoder whose code stands for an image. ``epochs=0``: as initialized, never trained (FedWaD, CIFAR-10)."""

    name: str
    #: conv: 4x4 convolutions of stride 2 with ReLU; dense: linear layers with ReLU. Each with its mirror image.
    kind: Literal["conv", "dense"]
    #: channels (conv) or units (dense) of each layer; the last is the code
    sizes: list[Width]
    #: epochs of the encoder's training; 0 = as initialized
    epochs: StepsOrNone
    #: images of a training step
    batch_size: Items
    #: rate of Adam in the encoder's training
    lr: Positive

    def __post_init__(self) -> None:
        require(len(self.sizes) >= 1 and min(self.sizes) >= 1, "sizes", f"{self.sizes} has no layer, or one below 1")


@dataclass
class TextFeatures:
    """Texts as points; tasks of images have pixels, or an autoencoder's code (``encoder`` beside this)."""

    #: tfidf: TF-IDF of words, then a truncated SVD (latent semantic analysis); cls: last hidden state of the run's
    #: model, as clients start from it, at [CLS]
    kind: Literal["tfidf", "cls"]
    #: whose train texts the words, the SVD and the scale are fitted on: the transfer set's, which no client has; the
    #: global one's, which the server has; clients: all clients', which then do not stay with them
    fitted_on: Literal["transfer", "global", "clients"]
    #: of tfidf: features of a text
    components: Annotated[Width, ABOVE_ZERO]
    #: of tfidf: most frequent words that are counted; null = all
    words: Items | None


@dataclass
class OtddSettings:
    """Distance between labeled samples (OTDD, Alvarez-Melis and Fusi 2020), federated (FedWaD 4, D.3) or exact."""

    #: federated: FedWaD on augmented points; exact: one optimal transport problem over all samples, centralized
    solver: Literal["federated", "exact"]
    #: between classes: ||Sigma - Sigma'||_F^2 (eq. 14), or of the roots of Sigma (public code)
    covariance: Literal["sigma_frobenius", "sqrt_frobenius"]
    #: what of a class's covariance counts: all; its diagonal; for sqrt_frobenius, root_diagonal: diag(Sigma^{1/2})
    #: (public code), diagonal: diag(Sigma)^{1/2}
    part: Literal["full", "diagonal", "root_diagonal"]
    #: samples of each side, at most (a seeded draw)
    samples: Annotated[int, AtMost(10**8), Holds(lambda value: value >= 2, "is not at least 2")]
    #: of the computation with solver=federated
    precision: Literal["float64", "float32"]
    #: of solver=federated: its interpolating measures
    fedwad: FedwadSettings
    #: what stands for an image; null = its normalized pixels
    encoder: EncoderSettings | None = None
    #: what stands for a text; tasks of images do not read it
    features: TextFeatures | None = None

    def __post_init__(self) -> None:
        roots = self.part != "root_diagonal" or self.covariance == "sqrt_frobenius"
        require(roots, "part", "root_diagonal works only with covariance=sqrt_frobenius")
        require(self.fedwad.mode == "approximate", "fedwad.mode", "exact works only with method=federated_distance")
        require(self.fedwad.privacy is None, "fedwad.privacy", "works only with method=federated_distance")


@dataclass
class ClusteringSettings:
    """Spectral clustering of the clients by the distance of their data (FedWaD D.5), before they are trained."""

    #: none: one cluster of all; affinity: (scale - D) / scale; sparse3, sparse5, ...: nearest neighbors in D
    graph: str
    #: how many clusters (public code: 5), or eigengap: where the graph Laplacian's spectrum has its widest gap
    clusters: Parties | Literal["eigengap"]
    #: of graph=affinity: largest = the largest distance there is; a number (public code: 5000) must not be exceeded
    scale: Positive | Literal["largest"]
    #: the distance between two clients' data
    otdd: OtddSettings

    def __post_init__(self) -> None:
        right = re.fullmatch(r"none|affinity|sparse[1-9]\d{0,3}", self.graph)
        require(bool(right), "graph", f"{self.graph!r} is not one of none, affinity, sparse3, sparse5 (sparseK)")

    @property
    def neighbors(self) -> int | None:
        """K of ``sparseK``; None of other graphs."""
        return int(self.graph.removeprefix("sparse")) if self.graph.startswith("sparse") else None
