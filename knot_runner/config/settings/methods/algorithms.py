"""Settings of the federated algorithms, with one class per algorithm (:data:`FEDERATED_ALGORITHMS`).

Each class has only the settings of its algorithm. Class attributes, such as ``selects``, are not settings: they
describe the algorithm for other modules. A plug-in derives a class from :class:`AveragingSettings` or
:class:`FederatedSettings`, and names it in its :class:`~knot_runner.methods.contract.Method`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.config.settings.sizes import (
    AT_LEAST_ONE,
    Channels,
    Depth,
    FractionOrNone,
    NamedModel,
    NotNegative,
    Positive,
    Proportion,
    ProportionOrNone,
    Several,
    Steps,
    StepsOrNone,
)
from knot_runner.config.strict import late

if TYPE_CHECKING:
    from knot_runner.config.settings.methods.server_distillation import ServerDistillation
else:  # most algorithms have none
    ServerDistillation = late("methods.server_distillation", "ServerDistillation")


@dataclass(kw_only=True)
class FedAvgSettings(AveragingSettings):
    """Averages the clients' models (McMahan et al. 2017)."""

    functions = "knot_runner.methods.federated.averaging:FEDAVG"


@dataclass(kw_only=True)
class FedProxSettings(AveragingSettings):
    """Adds a proximal term to local training (Li et al. 2020)."""

    functions = "knot_runner.methods.federated.averaging:FEDAVG"

    #: weight of the proximal term, (mu / 2) * distance^2 to the global model
    mu: NotNegative


@dataclass(kw_only=True)
class ScaffoldSettings(AveragingSettings):
    """Uses control variates against client drift (Karimireddy et al. 2020)."""

    functions = "knot_runner.methods.federated.scaffold:SCAFFOLD"


@dataclass
class LatentGenerator:
    """Generates features of the penultimate layer for a given label."""

    #: weight of the cross-entropy on generated features
    alpha: NotNegative
    #: weight of the divergence between client outputs and outputs on generated features
    beta: NotNegative
    #: factor for both weights per round
    decay: Proportion
    #: noise dimension
    noise: Channels
    #: hidden units
    hidden: Channels
    #: generator steps per round
    steps: Steps
    #: generated features per step
    batch_size: Several
    #: learning rate (Adam)
    lr: Positive
    #: weight decay
    weight_decay: NotNegative
    #: weight of the diversity loss
    diversity: NotNegative


@dataclass(kw_only=True)
class FedGenSettings(AveragingSettings):
    """FedAvg with a feature generator that the server trains (Zhu, Hong and Zhou 2021)."""

    functions = "knot_runner.methods.federated.fedgen:FEDGEN"

    #: feature generator of the server
    generator: LatentGenerator


@dataclass(kw_only=True)
class FedPerSettings(AveragingSettings):
    """Averages the body; every client keeps its own head (Arivazhagan et al. 2019)."""

    functions = "knot_runner.methods.federated.personal:SHARED_BODY"
    travels = ("!head",)

    #: head epochs of all clients in the last round; 0 for none (FedWaD: 10)
    final_head_epochs: StepsOrNone
    #: head of untrained clients: initial (papers), or mean of trained heads (FedWaD's code)
    first_head: Literal["own", "averaged"]


@dataclass(kw_only=True)
class FedRepSettings(FedPerSettings):
    """FedPer, but the head is trained before the body (Collins et al. 2021)."""

    #: epochs for the head; the body trains for the remaining ``training.local_epochs``; null: one for the body
    head_epochs: Steps | None


@dataclass(kw_only=True)
class DittoSettings(AveragingSettings):
    """Trains a personal model v near the global model w, with the penalty ``(lambda/2)*||v-w||^2`` (Li et al. 2021)."""

    functions = "knot_runner.methods.federated.ditto:DITTO"

    #: penalty weight lambda; 0 trains v independently
    lambda_: NotNegative
    #: local epochs of v; null uses ``training.local_epochs``
    personal_epochs: Steps | None = None
    #: learning rate of v; null uses ``training.lr``
    personal_lr: Positive | None = None


@dataclass(kw_only=True)
class ApflSettings(AveragingSettings):
    """Mixes a personal model v and the global model w: ``alpha*v + (1-alpha)*w`` (Deng et al. 2020)."""

    functions = "knot_runner.methods.federated.apfl:APFL"

    #: initial mixing weight
    alpha: ProportionOrNone
    #: update alpha once per round by gradient descent (eq. 10)
    adaptive: bool


@dataclass(kw_only=True)
class FedalaSettings(AveragingSettings):
    """Initializes each client by a learned element-wise mix of its model and the global model (Zhang et al. 2023)."""

    functions = "knot_runner.methods.federated.fedala:FEDALA"

    #: number of last layers that are mixed; others are copied from the global model
    layers: Annotated[Depth, AT_LEAST_ONE]
    #: share of training examples for learning the mix, drawn each round
    share: Proportion
    #: learning rate of the mix
    rate: Positive
    #: initial learning stops when the standard deviation of the loss over ``window`` passes is smaller
    threshold: Positive
    #: number of passes for ``threshold``
    window: Steps
    #: maximum passes for the initial mix; later mixes take one
    max_epochs: Steps
    #: the client model after training, or mixed with the current global model
    deployed: Literal["trained", "mixed"]


@dataclass(kw_only=True)
class FedsoupSettings(AveragingSettings):
    """Averages each client model with past global models if held-out accuracy improves (Chen et al. 2023)."""

    functions = "knot_runner.methods.federated.fedsoup:FEDSOUP"
    selects = True
    by_all_rounds = "begins to mix models after a share of all rounds (method.start)"

    #: share of rounds before averaging starts
    start: FractionOrNone


@dataclass(kw_only=True)
class _OwnModelsSettings(FederatedSettings):
    """Keys of algorithms whose clients may have different architectures."""

    #: client models, by file name and assigned in turn; empty uses ``model``
    models: list[NamedModel] = field(default_factory=list)


@dataclass(kw_only=True)
class LocalAlgorithmSettings(_OwnModelsSettings):
    """Trains every client alone."""

    functions = "knot_runner.methods.federated.own_models:LOCAL"


@dataclass
class LabelDistillation:
    """Regularization towards other clients' mean logits per label."""

    #: weight of the regularizer
    weight: NotNegative
    #: softmax temperature of the regularizer
    temperature: Positive


@dataclass(kw_only=True)
class FedDistillSettings(_OwnModelsSettings):
    """Exchanges mean logits per label (Jeong et al. 2018)."""

    functions = "knot_runner.methods.federated.feddistill:FEDDISTILL"

    #: regularization by the mean logits
    labels: LabelDistillation


@dataclass(kw_only=True)
class FedMdSettings(_OwnModelsSettings):
    """Clients of any architecture learn the average of their logits on unlabeled examples (Li and Wang 2019)."""

    functions = "knot_runner.methods.federated.fedmd:FEDMD"

    #: distillation of the clients
    server_distillation: ServerDistillation


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
