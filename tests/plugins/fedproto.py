"""FedProto (Tan et al. 2022): clients keep their models, and share the mean features of each class."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

import knot_runner as kr


@dataclass(kw_only=True)
class FedProtoSettings(kr.FederatedSettings):
    weight: float


def near_prototypes(settings, inputs):
    """CE + weight |f(x) - prototype of the class|^2 / H, where there is one (eq. 7)."""

    def loss(logits, rows, features):
        near = torch.where(rows["prototypes"].isnan(), features.detach(), rows["prototypes"])
        pull = settings["weight"] * (features - near).square().mean(1)
        return F.cross_entropy(logits, rows["labels"], reduction="none") + pull

    return {"labels": inputs.labels, **inputs.tensors}, loss


def plan(config, state, federation, round):
    own = state.get("prototypes", torch.full((len(federation.labels.names), 1), torch.nan))[federation.train_labels]
    pulled = kr.Objective(near_prototypes, {"weight": config.weight}, reads_features=True)
    plain = kr.METHODS["local"].plan(config, state, federation, round)
    return [replace(one, objective=pulled, inputs={"prototypes": own[one.rows]}) for one in plain]


def ask(config, federation, round, client, model):
    return [kr.Inference(model, federation.clients[client].train, "train", output="features")]


def answer(config, federation, client, features):
    labels = F.one_hot(federation.train_labels[federation.clients[client].train], len(federation.labels.names))
    return {"sums": labels.T.to(features[0].dtype) @ features[0], "counts": labels.sum(0)}


def fold(config, state, federation, round, answers, _):
    sums, counts = (sum(sent.parts[name] for sent in answers.each) for name in ("sums", "counts"))
    return {**state, "prototypes": sums / counts[:, None]}, {}


SHARED = kr.Exchange(ask, answer, lambda *_: [], fold, reads="each", answered_by="clients")
kr.METHODS["fedproto"] = replace(kr.METHODS["local"], plan=plan, exchange=lambda _: SHARED, settings=FedProtoSettings)
