"""Settings of the federated algorithms: one class each, in one table by ``method.algorithm``.

A class holds the settings of its algorithm and nothing else, so that what an algorithm does not have cannot be set. Its
class attributes state what fleets, privacy and bundles must know. A plug-in's class derives from
:class:`AveragingSettings` or :class:`FederatedSettings`, and is registered with its functions
(:class:`~knot_runner.methods.contract.Method`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.config.settings.methods.server_distillation import (
    LabelDistillation,
    LatentGenerator,
    ServerDistillation,
)
from knot_runner.config.settings.sizes import AT_LEAST_ONE, Depth, NotNegative, Positive, Steps, StepsOrNone
from knot_runner.config.strict import Holds


@dataclass(kw_only=True)
class FedAvgSettings(AveragingSettings):
    """Mean of the participants' models (McMahan et al. 2017)."""

    functions = "knot_runner.methods.federated.averaging:FEDAVG"
    needs_rounds = not_private = ""


@dataclass(kw_only=True)
class FedProxSettings(AveragingSettings):
    """FedAvg with local training held near the global model (Li et al. 2020)."""

    functions = "knot_runner.methods.federated.averaging:FEDAVG"
    needs_rounds = not_private = ""

    #: weight of (mu / 2) || w - w_global ||^2
    mu: NotNegative


@dataclass(kw_only=True)
class ScaffoldSettings(AveragingSettings):
    """Control variates against client drift (Karimireddy et al. 2020)."""

    functions = "knot_runner.methods.federated.scaffold:SCAFFOLD"
    needs_rounds = not_private = ""
    sends = ("weights", "buffers", "control")
    controls = True


@dataclass(kw_only=True)
class FedGenSettings(AveragingSettings):
    """FedAvg with a generator of features learned by the server (Zhu, Hong and Zhou 2021)."""

    functions = "knot_runner.methods.federated.fedgen:FEDGEN"
    needs_rounds = not_private = ""
    sends = ("weights", "buffers", "generator/")

    #: the server's generator of features
    generator: LatentGenerator


@dataclass(kw_only=True)
class FedPerSettings(AveragingSettings):
    """The body is shared, and every client keeps its own head (Arivazhagan et al. 2019)."""

    functions = "knot_runner.methods.federated.personal:SHARED_BODY"
    needs_rounds = not_private = ""
    keeps = "head"

    #: last round with all clients: epochs of the head alone; 0 = none (FedWaD's protocol: 10)
    final_head_epochs: StepsOrNone
    #: the head of a client that has not trained yet: its own initial head, as in the papers, or the mean of the trained
    #: heads, as in FedWaD's code
    first_head: Literal["own", "averaged"]


@dataclass(kw_only=True)
class FedRepSettings(FedPerSettings):
    """As FedPer, training the head first and then the body (Collins et al. 2021)."""

    needs_rounds = not_private = ""

    #: epochs of the head alone; the body then trains for ``training.local_epochs`` - head_epochs
    head_epochs: Steps


@dataclass(kw_only=True)
class DittoSettings(AveragingSettings):
    """Beside its part of the global model w, a client trains its own v on f(v) + (lambda / 2) ||v - w||^2 (Li et al.
    2021)."""

    functions = "knot_runner.methods.federated.ditto:DITTO"
    needs_rounds = not_private = ""

    #: lambda: 0 leaves the client alone with its examples, large values hold v at w
    lambda_: NotNegative
    #: local epochs of v; null = as many as of w
    personal_epochs: Steps | None = None
    #: rate of v; null = training.lr
    personal_lr: Positive | None = None


@dataclass(kw_only=True)
class ApflSettings(AveragingSettings):
    """A client uses alpha v + (1 - alpha) w, v being its own model and w the global one (Deng et al. 2020)."""

    functions = "knot_runner.methods.federated.apfl:APFL"
    needs_rounds = not_private = ""

    #: at the start of the run
    alpha: Annotated[float, Holds(lambda value: 0 <= value <= 1, "is not in [0, 1]")]
    #: each client moves its alpha by one gradient step a round (their eq. 10)
    adaptive: bool


@dataclass(kw_only=True)
class FedalaSettings(AveragingSettings):
    """A client trains from its own model moved towards the global one by weights, one per parameter, that it learns on
    its own examples (Zhang et al. 2023)."""

    functions = "knot_runner.methods.federated.fedala:FEDALA"
    needs_rounds = not_private = ""
    keeps = "model"

    #: the last so many layers have weights; the others are the global model's (1 = the head alone)
    layers: Annotated[Depth, AT_LEAST_ONE]
    #: of the client's training examples, drawn in every round, that the weights are learned on
    share: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")]
    #: rate that the weights of the mix are learned at
    rate: Positive
    #: a client's first weights are learned until the losses of ``window`` passes have a standard deviation below this
    threshold: Positive
    #: passes whose losses are compared
    window: Steps
    #: passes at most, of a client's first weights; later ones take one pass
    max_epochs: Steps
    #: what a client uses: the model that it trained last, or this one mixed with the current global model
    deployed: Literal["trained", "mixed"]


@dataclass(kw_only=True)
class FedsoupSettings(AveragingSettings):
    """In the later rounds a client mixes what it has trained with global models that it selects on its held-out
    examples (Chen et al. 2023)."""

    functions = "knot_runner.methods.federated.fedsoup:FEDSOUP"
    needs_rounds = not_private = ""
    keeps = "model"
    selects = True
    by_all_rounds = "begins to mix models after a share of all rounds (method.start)"

    #: share of the rounds before the first soup
    start: Annotated[float, Holds(lambda value: 0 <= value < 1, "is not in [0, 1)")]


@dataclass(kw_only=True)
class LocalAlgorithmSettings(FederatedSettings):
    """Every client trains alone."""

    functions = "knot_runner.methods.federated.own_models:LOCAL"
    needs_rounds = ""
    not_private = "send nothing that noise could cover"

    #: the clients' architectures, assigned in turn by number, as settings of models (a YAML has the names of
    #: conf/model); [] = all have ``model``
    models: list[Any] = field(default_factory=list)


@dataclass(kw_only=True)
class FedDistillSettings(FederatedSettings):
    """Clients exchange their mean logits of each label (Jeong et al. 2018)."""

    functions = "knot_runner.methods.federated.feddistill:FEDDISTILL"
    needs_rounds = not_private = ""
    sends = ("label_logits/", "label_counts/")
    sends_logits = True

    #: the regularizer by the others' mean logits of each label
    labels: LabelDistillation
    #: as of ``local``
    models: list[Any] = field(default_factory=list)


@dataclass(kw_only=True)
class FedMdSettings(FederatedSettings):
    """Clients of any architectures distill from their mean logits on unlabeled examples (Li and Wang 2019)."""

    functions = "knot_runner.methods.federated.fedmd:FEDMD"
    needs_rounds = not_private = ""
    sends_logits = True

    #: the clients' distillation from their mean logits
    server_distillation: ServerDistillation
    #: as of ``local``
    models: list[Any] = field(default_factory=list)


#: ``method.algorithm`` -> its settings. Plug-ins add to the table of all methods (``families.METHOD_SETTINGS``).
FEDERATED_ALGORITHMS: dict[str, type[FederatedSettings]] = {
    "fedavg": FedAvgSettings,
    "fedprox": FedProxSettings,
    "scaffold": ScaffoldSettings,
    "fedgen": FedGenSettings,
    "fedrep": FedRepSettings,
    "fedper": FedPerSettings,
    "feddistill": FedDistillSettings,
    "fedmd": FedMdSettings,
    "local": LocalAlgorithmSettings,
    "ditto": DittoSettings,
    "apfl": ApflSettings,
    "fedala": FedalaSettings,
    "fedsoup": FedsoupSettings,
}
