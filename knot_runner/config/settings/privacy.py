"""Settings of differentially private training (DP-FedAvg, McMahan et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from knot_runner.config.settings.methods.algorithms import LocalAlgorithmSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.partition import Centralized
from knot_runner.config.settings.sizes import Fraction, Positive
from knot_runner.config.strict import Holds, require
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings

#: Supported range of the noise multiplier. For smaller values, Renyi divergences are not finite for usual numbers of
#: rounds. Larger values prevent any training.
NoiseMultiplier = Annotated[
    float, Holds(lambda value: value == 0 or 0.01 <= value <= 1000, "0, or a number in [0.01, 1000]")
]


@dataclass(kw_only=True)
class UserPrivacySettings:
    """User-level differential privacy."""

    name: str
    #: C: maximum L2 norm of a client update; null disables clipping
    clip_norm: Positive | None
    #: z: noise of standard deviation z*C on the sum of updates, 0 or 0.01 to 1000; null derives it from
    #: ``epsilon``
    noise_multiplier: NoiseMultiplier | None
    #: target epsilon after ``training.rounds``, for noise_multiplier=null
    epsilon: Positive | None = None
    #: delta; null uses 1 / K^1.1 for K clients
    delta: Fraction | None = None
    #: draw each client independently with probability clients_per_round / K, or a fixed number per round
    sampling: Literal["poisson", "fixed"]
    #: SCAFFOLD: multiply control variate changes by this number and training.lr before clipping
    control_steps: Positive
    #: FedGen: multiply label shares by this number and clip_norm before clipping
    label_scale: Positive
    #: FedMD, FedDistill and server distillation: maximum norm of centered logits (root mean square over examples)
    clip_logits: Positive

    def __post_init__(self) -> None:
        only_one = (self.noise_multiplier is None) != (self.epsilon is None)
        require(only_one, "noise_multiplier", "set exactly one of noise_multiplier and epsilon. Use null for the other")
        noisy = self.noise_multiplier != 0
        require(not noisy or self.clip_norm is not None, "clip_norm", "required for noise, but not set")

    def check(self, settings: Settings) -> None:
        """Check that a run with ``settings`` can guarantee privacy.

        Raises:
            UserError: A setting cannot be combined with privacy.
        """
        method = settings.method
        why = ""
        other = "method"
        hint = "Use ~privacy"
        if not isinstance(method, FederatedSettings):
            why = "the method has no clients that train in rounds"
        elif isinstance(method, LocalAlgorithmSettings):
            why = "the clients send nothing, so there is nothing to protect"
        elif method.clustering is not None:
            why = "privacy=user_level does not protect the client data that method.clustering uses"
            hint = "Use method.clustering=null"
        elif settings.fleet is not None:
            why = "the privacy accountant does not cover how a fleet changes which clients participate"
            other = "fleet"
            hint = "Use fleet=none"
        elif getattr(method.personalization, "shares_models", False):
            why = "method.personalization sends the clients' personalized models to other clients without clipping"
            hint = "Use finetune or soup"
        elif method.aggregation != "uniform":
            problem = "privacy requires that all clients have equal weights. Use 'uniform'"
            raise UserError(problem, "method.aggregation")
        elif isinstance(settings.partition, Centralized):
            why = "user-level privacy needs at least two clients"
            other = "partition"
            hint = "Use ~privacy or another partition"
        if why:
            raise settings.misfit("privacy", other, why, hint)
