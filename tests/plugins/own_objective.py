"""A local loss of one's own: FedNTD (Lee et al. 2022), FedAvg that also distills the not-true classes of the start."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

import knot_runner as kr
from knot_runner.methods.federated import averaging


@dataclass(kw_only=True)
class FedNtdSettings(kr.AveragingSettings):
    beta: float
    tau: float


def not_true_distillation(settings, inputs):
    """CE + beta tau^2 KL(start || model) over the classes that are not the truth, at temperature tau (eq. 5 and 6)."""
    beta, tau = settings["beta"], settings["tau"]

    def others(logits, labels):
        truth = F.one_hot(labels, logits.shape[1]).bool()
        return torch.log_softmax((logits / tau)[~truth].view(len(logits), -1), 1)

    def loss(logits, rows):
        kept = F.kl_div(others(logits, rows["labels"]), rows["start"], reduction="none", log_target=True).sum(1)
        return F.cross_entropy(logits, rows["labels"], reduction="none") + beta * tau**2 * kept

    return {"labels": inputs.labels, "start": others(inputs.start_logits(), inputs.labels)}, loss


def plan(config, state, federation, round):
    objective = kr.Objective(not_true_distillation, {"beta": config.beta, "tau": config.tau})
    return [replace(request, objective=objective) for request in averaging.plan(config, state, federation, round)]


kr.METHODS["fedntd"] = replace(kr.METHODS["fedavg"], plan=plan, settings=FedNtdSettings)
