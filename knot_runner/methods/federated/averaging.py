"""FedAvg (McMahan et al. 2017, Algorithm 1) and FedProx (Li et al. 2020). Many other methods use these functions.

In round t, the server draws m = max(C K, 1) of the K clients as participants, where C is a configured fraction. Each
participant k trains the global model w_t, and sends the update w_k - w_t, where w_k is the trained model. The server
adds the mean of the updates to the global model:

    w_{t+1} = w_t + lr sum_k (n_k / n) (w_k - w_t)

n_k is the number of training examples of client k, n is the sum of these numbers over the participants, and lr is the
server's learning rate. FedProx adds the proximal term mu / 2 |w - w_t|^2 to the local objective.

Differences from the paper: clients send updates instead of models, and the server may use momentum or Adam (Reddi et
al. 2021). Without momentum and Adam, and for ``lr=1``, sending updates is equivalent to sending models.

State:

- ``weights`` [P], ``buffers`` [Q]: the global model
- ``server/...``: the state of the server's optimizer, if it has one
- ``client/<k>/unshared``: the client's parameters that ``method.shared`` excludes
- ``client/<k>/statistics``: the client's running statistics, with ``batchnorm=local``
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import FedProxSettings
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Engine, LocalTraining, Phase, Recipe, Trained
from knot_runner.methods.contract import ClientMessage, ClientWork, Method, Sent, size
from knot_runner.methods.federated.chilling import chilled
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundOutcome, RoundRow
from knot_runner.util.errors import UserError

#: Number of values of a message that are summed at a time, in float64. This many values fit into the cache of a core.
SUMMED_AT_ONCE = 2**15


def init(config: AveragingSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model."""
    return {"weights": federation.model.weights, "buffers": federation.model.buffers}


def plan(config: AveragingSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return one training request per participant. Training starts from the model that the participant received."""
    return drawn_requests(config, federation, round, partial(deployed, config, state, federation))


def drawn_requests(
    config: FederatedSettings, federation: Federation, round: int, start: Callable[[int], ClientModel]
) -> list[LocalTraining]:
    """Return a training request for each participant of ``round``; [] after the last round.

    ``start(client)`` returns the model from which ``client`` trains.
    """
    if round >= federation.training.rounds:
        return []
    return [local_request(config, federation, round, client, start(client)) for client in federation.drawn(round)]


def local_request(
    config: FederatedSettings, federation: Federation, round: int, client: int, start: ClientModel
) -> LocalTraining:
    """Return the request of ``round`` that trains the model ``start`` on the examples of ``client``."""
    training, party = federation.training, federation.clients[client]
    recipe = Recipe(
        phases=(Phase(training.local_epochs),),
        batch_size=training.batch_size,
        drop_last=training.drop_last,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        decay_biases=training.decay_biases,
        proximal=config.mu if isinstance(config, FedProxSettings) else 0.0,
        frozen_statistics=config.batchnorm == "frozen",
        augment=federation.augment,
        optimizer=training.optimizer,
    )
    request = LocalTraining(
        client, round, federation.seed, start, party.train, party.test, recipe,
        network=federation.network_number(client),
    )  # fmt: skip
    return chilled(request, config, federation) if config.chills else request


def fold_round(
    method: Method, config: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained], engine: Engine,
) -> RoundOutcome:  # fmt: skip
    """Send the clients' messages after local training, and take the server step.

    ``trained`` holds the result of each request. ``engine`` is not used, because there are no second messages.

    Returns:
        The state after the round, the log entries, and no further work. The log entries include ``bytes_down`` and
        ``bytes_up``, summed over the clients.
    """
    works = ClientWork.of_round(round, requests, trained)
    kept, costs = FederatedState(), {"bytes_down": 0, "bytes_up": 0}

    def messages() -> Iterator[Sent]:
        for work in works:
            start = method.start_state(state, work)
            sent = method.send(Sent(work.client, work.examples, method.message(config, start, federation, work)), 1)
            costs["bytes_down"] += size((method.received or received)(config, start, federation, work.client))
            costs["bytes_up"] += sent.bytes
            for name, tensor in method.keep(config, start, federation, replace(work, sent=sent.parts)).items():
                kept[f"client/{work.client}/{name}"] = tensor
            yield sent

    after, row = state, RoundRow()
    if method.fold_each is None:
        # Messages are created and summed one after another, in client order. Memory therefore holds one sum.
        # The result does not depend on the number of workers.
        if method.reduce is None:
            mean = mean_of(messages(), config.aggregation, method.unweighted)
        else:
            empty = partial(method.empty_message, config, state, federation, round)
            mean, row = method.reduce(round, 1, messages(), empty)
        if mean and method.fold is not None:
            after, entries = method.fold(config, state, federation, round, mean, federation.share(len(works)))
            row = {**row, **entries}
    elif works:
        after, row = method.fold_each(config, state, federation, round, list(messages()))
    observed = method.observe(works) if works else {}
    return {**after, **kept}, {**row, **observed, **costs}, []


def message(
    config: AveragingSettings, state: FederatedState, federation: Federation, work: ClientWork
) -> ClientMessage:
    """Return the client's message after its training.

    - ``update``: the change of the shared parameters
    - ``statistics``: the change of the running statistics, if the model has any and they are not frozen
    """
    return changes(config, state, work, shared_of(config, federation))


def changes(
    config: AveragingSettings, state: FederatedState, work: ClientWork, shared: Tensor | slice
) -> ClientMessage:
    """Return the client's message in the format of :func:`message`.

    ``update`` covers only the parameters that ``shared`` selects. ``shared`` is a mask [P] or a slice.
    """
    result = work.trained[0]
    parts = {"update": (result.weights - state["weights"])[shared]}
    if len(result.buffers) and config.batchnorm != "frozen":
        parts["statistics"] = result.buffers - state["buffers"]
    return parts


def mean_of(messages: Iterable[Sent], aggregation: str | None, unweighted: tuple[str, ...] = ()) -> ClientMessage:
    """Return the weighted mean of the messages, in float64; {} if there are no messages.

    The weight of a client is its number of training examples. With ``uniform`` aggregation, all clients have equal
    weights. For the message parts in ``unweighted``, all clients always have equal weights.
    """
    sums, weights = ClientMessage(), defaultdict[str, float](float)
    for sent in messages:
        for name, part in sent.parts.items():
            is_uniform = aggregation == "uniform" or name in unweighted
            weight = 1.0 if is_uniform else float(sent.examples)
            weights[name] += weight
            if name not in sums:
                sums[name] = torch.zeros(part.shape, dtype=torch.float64)
            elif sums[name].shape != part.shape:
                raise UserError(f"the clients send the part {name!r} in different shapes", "METHODS")
            blocks = sums[name].view(-1).split(SUMMED_AT_ONCE), part.reshape(-1).split(SUMMED_AT_ONCE)
            for total, values in zip(*blocks, strict=True):
                total.add_(values.double(), alpha=weight)
    return {name: total / weights[name] for name, total in sums.items()}


def fold(
    config: AveragingSettings,
    state: FederatedState,
    federation: Federation,
    round: int,
    mean: ClientMessage,
    share: float,
) -> Folded:
    """Update the global model w with the mean d of the clients' updates.

    Let lr be the server's learning rate. ``method.server.optimizer`` selects the formula for the new w:

    - ``none``: w + lr * d
    - ``momentum`` (FedAvgM): w + lr * u, for the updated velocity u <- beta1 * u + d
    - ``adam`` (FedAdam, Reddi et al. 2021, Algorithm 2): w + lr * m / (sqrt(v) + tau), for Adam's moments m and v of d

    The mean change of the clients' running statistics is added to the global running statistics.
    """
    server, step, after = config.server, mean["update"].double(), dict(state)
    if len(step) < len(state["weights"]):
        shared = federation.layout.matching(config.patterns)
        step = torch.zeros(len(shared), dtype=torch.float64).masked_scatter(shared, step)
    if "statistics" in mean:
        after["buffers"] = _moved(state["buffers"], mean["statistics"])
    if server.optimizer == "momentum":
        step = server.beta1 * _moment(state, "server/velocity", step) + step
        after["server/velocity"] = step
    elif server.optimizer == "adam":
        first = server.beta1 * _moment(state, "server/first", step) + (1 - server.beta1) * step
        second = server.beta2 * _moment(state, "server/second", step) + (1 - server.beta2) * step.square()
        after |= {"server/first": first, "server/second": second}
        step = first / (second.sqrt() + server.tau)
    return {**after, "weights": _moved(state["weights"], server.lr * step)}, {}


def _moved(vector: Tensor, change: Tensor) -> Tensor:
    return (vector.double() + change).to(vector.dtype)


def _moment(state: FederatedState, name: str, step: Tensor) -> Tensor:
    return state.get(name, torch.zeros_like(step))


def deployed(config: AveragingSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the model that the client uses.

    The client uses the global model. If the client has unshared parameters or local running statistics, these values
    replace the global values.
    """
    weights = state["weights"]
    if f"client/{client}/unshared" in state:
        weights = weights.clone()
        weights[~federation.layout.matching(config.patterns)] = state[f"client/{client}/unshared"]
    return ClientModel(weights, state.get(f"client/{client}/statistics", state["buffers"]))


def received(config: FederatedSettings, state: FederatedState, federation: Federation, client: int) -> ClientMessage:
    """Return the server's message to a client: the shared parameters and the running statistics.

    Frozen running statistics are not sent. If the method has no global model, the message is {}.
    """
    if "weights" not in state:
        return {}
    parts = {"weights": state["weights"][shared_of(config, federation)]}
    if config.batchnorm == "frozen":
        return parts
    return parts | {"statistics": state["buffers"]}


def shared_of(config: FederatedSettings, federation: Federation) -> Tensor | slice:
    """Return a mask [P] that selects the shared parameters. If all parameters are shared, return a full slice."""
    if config.patterns == ("*",):
        return slice(None)
    return federation.layout.matching(config.patterns)


#: FedAvg and FedProx. The proximal term of FedProx is part of the local training request
FEDAVG = Method(init, plan, message, fold, deployed)
