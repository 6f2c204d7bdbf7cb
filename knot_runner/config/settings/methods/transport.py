"""Settings of federated optimal transport (FedWaD): distances, clustering, and features of images and texts."""

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
    Several,
    Spread,
    Steps,
    StepsOrNone,
    Units,
    Width,
)
from knot_runner.config.strict import require


@dataclass
class PrivacySettings:
    """Gaussian mechanism for each message of a client (Balle and Wang 2018)."""

    mechanism: Literal["gaussian"]
    #: epsilon per message
    epsilon: Positive
    #: delta per message
    delta: Fraction
    #: clipping norm of samples
    clip: Annotated[Spread, ABOVE_ZERO]


@dataclass
class FedwadSettings:
    """Federated Wasserstein distance (FedWaD, Algorithm 1)."""

    #: interpolating measures: exact (eq. 5, growing support) or approximate (eq. 10)
    mode: Literal["exact", "approximate"]
    #: S: points of the first interpolating measure
    support: Items
    #: K: number of iterations
    iterations: Steps
    #: position on the geodesic; random: uniform in each interpolation
    t: float | Literal["random"]
    #: standard deviation of the initial points
    start_scale: Deviation
    #: noise on client messages; null disables it
    privacy: PrivacySettings | None = None

    def __post_init__(self) -> None:
        problem = f"expected 'random' or a number between 0 and 1, got {self.t}"
        require(self.t == "random" or 0 < self.t < 1, "t", problem)
        problem = "requires mode=approximate, since mode=exact reveals every sample"
        require(self.privacy is None or self.mode == "approximate", "privacy", problem)


@dataclass
class EncoderSettings:
    """An autoencoder that represents images by codes."""

    name: str
    #: 4x4 convolutions with stride 2, or linear layers, with ReLU and a mirrored decoder
    kind: Literal["conv", "dense"]
    #: channels or units per layer; the last is the code
    sizes: list[Width]
    #: training epochs; 0 keeps the initial weights
    epochs: StepsOrNone
    #: images per step
    batch_size: Items
    #: learning rate (Adam)
    lr: Positive

    def __post_init__(self) -> None:
        problem = f"expected at least one size, each at least 1, got {self.sizes}"
        require(min(self.sizes, default=0) >= 1, "sizes", problem)


@dataclass
class TextFeatures:
    """Feature vectors of texts."""

    #: TF-IDF with truncated SVD, or the last hidden state of the initial model at [CLS]
    kind: Literal["tfidf", "cls"]
    #: training texts that determine vocabulary, SVD and scale; with clients, texts leave the clients
    fitted_on: Literal["transfer", "global", "clients"]
    #: TF-IDF features per text
    components: Units
    #: most frequent words for TF-IDF; null keeps all
    words: Items | None


@dataclass
class OtddSettings:
    """Optimal transport distance between labeled samples (OTDD, Alvarez-Melis and Fusi 2020)."""

    #: FedWaD on augmented points, or centralized exact transport
    solver: Literal["federated", "exact"]
    #: class distance: squared Frobenius norm between covariances (eq. 14) or between their square roots (public code)
    covariance: Literal["sigma_frobenius", "sqrt_frobenius"]
    #: part of each covariance: all, its diagonal, or the diagonal of its square root (public code)
    part: Literal["full", "diagonal", "root_diagonal"]
    #: maximum samples per data set
    samples: Several
    #: floating-point type for solver=federated
    precision: Literal["float64", "float32"]
    #: settings for solver=federated
    fedwad: FedwadSettings
    #: autoencoder for images; null uses normalized pixels
    encoder: EncoderSettings | None = None
    #: features of texts
    features: TextFeatures | None = None

    def __post_init__(self) -> None:
        roots = self.part != "root_diagonal" or self.covariance == "sqrt_frobenius"
        require(roots, "part", "'root_diagonal' requires covariance=sqrt_frobenius")
        require(self.fedwad.mode == "approximate", "fedwad.mode", "'exact' requires method=federated_distance")
        require(self.fedwad.privacy is None, "fedwad.privacy", "requires method=federated_distance. Remove this key")


@dataclass
class ClusteringSettings:
    """Spectral clustering of clients by data distance, before training (FedWaD D.5)."""

    #: similarity graph from distances D: none (one cluster), affinity ((scale - D) / scale), or sparse3, sparse5, ...
    #: (nearest neighbors)
    graph: str
    #: number of clusters, or largest eigengap of the graph Laplacian; null: 5 (public code), at most half of the
    #: clients
    clusters: Parties | Literal["eigengap"] | None
    #: scale of graph=affinity: an upper bound of D, or the largest D
    scale: Positive | Literal["largest"]
    #: distance between the data of two clients
    otdd: OtddSettings

    def __post_init__(self) -> None:
        known = re.fullmatch(r"none|affinity|sparse[1-9]\d{0,3}", self.graph)
        names = "none, affinity, or sparseN with a number N from 1 to 9999"
        require(bool(known), "graph", f"unknown graph {self.graph!r} (choose from {names})")

    @property
    def neighbors(self) -> int | None:
        """Return N, the number of nearest neighbors, if ``graph`` is ``sparseN``; None for other graphs."""
        if self.graph.startswith("sparse"):
            return int(self.graph.removeprefix("sparse"))
        return None
