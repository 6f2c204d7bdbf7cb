"""MOON (Li et al. 2021): features stay near those of the global model, and away from those of the client's last one."""

from dataclasses import dataclass, replace

import torch.nn.functional as F

import knot_runner as kr
from knot_runner.methods.federated import averaging


@dataclass(kw_only=True)
class MoonSettings(kr.AveragingSettings):
    mu: float
    tau: float


def contrastive(settings, inputs):
    """CE - mu log of the share of the global model's features in exp(cos / tau) (eq. 3)."""

    def loss(logits, rows, features):
        near, far = (F.cosine_similarity(features, rows[name]) / settings["tau"] for name in ("start", "last"))
        away = F.softplus(far - near)
        return F.cross_entropy(logits, rows["labels"], reduction="none") + settings["mu"] * away

    return {"labels": inputs.labels, **{name: inputs.features(name) for name in ("start", "last")}}, loss


def plan(config, state, federation, round):
    objective = kr.Objective(contrastive, {"mu": config.mu, "tau": config.tau}, reads_features=True)
    requests = averaging.plan(config, state, federation, round)
    last = [kr.ClientModel(state.get(f"client/{r.client}/last", r.start.weights), r.start.buffers) for r in requests]
    return [replace(r, objective=objective, models={"last": own}) for r, own in zip(requests, last, strict=True)]


def keep(config, state, federation, work):
    return {"last": work.trained[0].weights}


kr.METHODS["moon"] = replace(kr.METHODS["fedavg"], plan=plan, keep=keep, settings=MoonSettings)
