"""Costs of a federated round, of all of its clients together: bytes that they receive and send, as the methods were
published, and estimated FLOPs.

Numbers are sent as they are, uncompressed, each in the size that training computes in. Settings, seeds, labels' numbers
and public examples, which all parties have beforehand, are not counted. Running statistics of batch normalization are
sent where they are averaged: with ``batchnorm=local`` they never leave the client, with ``frozen`` they never change.

With F, the forward pass of one example, training takes 3 F per example and epoch, since the backward pass takes about
twice the forward one (Kaplan et al. 2020, section 2.1), and inference takes F. Optimizer steps, aggregation, evaluation
on test examples, and an objective's forward passes of the starting model are left out.
"""

from __future__ import annotations

from knot_runner.config.settings import FederatedSettings, FedMdSettings, server_distillation
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.flops import ExampleFlops
from knot_runner.methods.contract import Method, RoundWork, Traffic
from knot_runner.methods.federated.server_distillation import SERVER
from knot_runner.methods.federation import Federation
from knot_runner.methods.weighting import needs_bias


def round_costs(
    method: Method, hp: FederatedSettings, federation: Federation, work: RoundWork, flops: ExampleFlops | None
) -> dict[str, int | None]:
    """``bytes_down``, ``bytes_up``, ``client_flops`` and ``server_flops`` of one round of ``federation``; FLOPs are
    None where those of an example are unknown."""
    down, up = (method.traffic or WHOLE_MODELS).count(hp, federation, work)
    client = server = None
    if flops is not None:
        client = sum(training_flops(request, flops) for request in work.requests)
        client += sum(training_flops(request, flops) for request in work.distillation if request.client != SERVER)
        server = sum(training_flops(request, flops) for request in work.distillation if request.client == SERVER)
        answers = sum(len(inference.rows) for inference in work.inferences) * flops.forward
        if method.exchange is not None and method.exchange.answered_by == "clients":
            client += answers
        else:
            server += answers
    return {"bytes_down": down, "bytes_up": up, "client_flops": client, "server_flops": server}


def training_flops(request: LocalTraining, flops: ExampleFlops) -> int:
    """Of one local training: 3 F per example and epoch; an epoch of the head alone needs no gradient below it, one of
    the body none of the head's weights; a program may train further epochs of all."""
    recipe, count = request.recipe, len(request.rows)
    if recipe.drop_last:
        count -= count % recipe.batch_size
    each = {
        "all": 3 * flops.forward,
        "head": flops.forward + flops.head,
        "body": 3 * flops.forward - flops.head,
    }
    further = round(request.program.further * count * each["all"]) if request.program else 0
    return sum(phase.epochs * count * each[phase.trains] for phase in recipe.phases) + further


def whole_models(hp: FederatedSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """Every client receives the global model and sends one (McMahan et al. 2017, Algorithm 1), whatever else it trains
    for itself."""
    once = {request.client: request for request in work.requests}
    each = _bytes(list(once.values()), federation.layout.size + _statistics(hp, federation))
    return each, each


def models_and_controls(hp: FederatedSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """SCAFFOLD: model and control variate, both ways (Karimireddy et al. 2020, Algorithm 1, lines 5 and 13)."""
    each = _bytes(work.requests, 2 * federation.layout.size + _statistics(hp, federation))
    return each, each


def bodies(hp: FederatedSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """FedRep and FedPer: all but the head (Collins et al. 2021, Algorithm 1; Arivazhagan et al. 2019, section 3).

    The server of ours averages heads, too, for clients that were never drawn: no part of the methods, not counted. A
    server that distills asks the clients' whole models, which they send then. A round that trains heads alone begins
    with the body that was learned, and sends nothing back.
    """
    body = int(federation.layout.mask("body").sum()) + _statistics(hp, federation)
    sent = body if server_distillation(hp) is None else federation.layout.size + _statistics(hp, federation)
    returned = [one for one in work.requests if any(phase.trains != "head" for phase in one.recipe.phases)]
    return _bytes(work.requests, body), _bytes(returned, sent)


def label_means(hp: FederatedSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """Federated distillation by labels: a client sends the mean logits of each of its labels, and receives the others'
    mean logits of these (Jeong et al. 2018, section 3), once there are any."""
    down = up = 0
    for request in work.requests:
        labels = federation.train_labels[request.rows]
        up += _bytes([request], work.classes * len(labels.unique()))
        if "known" in request.inputs:
            down += _bytes([request], work.classes * len(labels[request.inputs["known"]].unique()))
    return down, up


def public_logits(hp: FedMdSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """FedMD: a client sends its logits of the public examples (and its bias, where the weighting reads any), and
    receives the consensus, or with ``ensemble=each`` the logits of every other (Li and Wang 2019, Algorithm 1)."""
    if not work.inferences:
        return 0, 0
    rows = len(work.inferences[0].rows)
    biases = 1 if needs_bias(hp.server_distillation.weighting) else 0
    up = _bytes(work.requests, work.classes * (rows + biases))
    down = 0
    for request in work.distillation:
        received = [name for name in request.inputs if name != str(request.client)]
        down += _bytes([request], work.classes * rows * len(received))
    return down, up


def nothing(hp: FederatedSettings, federation: Federation, work: RoundWork) -> tuple[int, int]:
    """Returns no traffic: all examples are in one place."""
    return 0, 0


def _statistics(hp: FederatedSettings, federation: Federation) -> int:
    """How many running statistics go with a model."""
    return federation.layout.buffer_size if hp.batchnorm == "averaged" else 0


def _bytes(requests: list[LocalTraining], numbers: int) -> int:
    """Returns the bytes of ``numbers`` numbers for each of the ``requests``."""
    return sum(numbers * request.start.weights.element_size() for request in requests)


WHOLE_MODELS = Traffic("the model both ways", whole_models)
MODELS_AND_CONTROLS = Traffic("model and control variate both ways", models_and_controls)
BODIES = Traffic("all but the head both ways", bodies)
LABEL_LOGITS = Traffic("mean logits of labels both ways", label_means)
PUBLIC_LOGITS = Traffic("logits of public examples both ways", public_logits)
NOTHING_SENT = Traffic("nothing, since all examples lie in one place", nothing)
