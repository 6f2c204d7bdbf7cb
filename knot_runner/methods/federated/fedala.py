"""FedALA (Zhang et al. 2023): a client trains from a learned mix of its own model and the global model.

With the client's own model v, the global model w and mixing weights W, training starts from

    v + (w - v) W, elementwise

W is 1 except in the last ``method.layers`` layers. In these layers, W is learned by gradient steps on a fraction of the
client's examples, and clipped to [0, 1]. When a client learns W for the first time, it takes several passes over these
examples, until the loss hardly varies between passes. In later rounds, the client starts from its last W and takes one
pass.

As in the authors' code, W is initialized to 1, and new examples are drawn in every round. A client that has no model of
its own trains from w.

Differences from the authors' code: we check how much the mean loss of a pass varies. The code checks the loss of the
pass's last batch. We also limit the number of passes.

State, in addition to FedAvg's:

- ``client/<k>/weights`` and ``client/<k>/buffers``: the client's model after its last training
- ``client/<k>/mix`` [p]: the client's W in the last layers
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import FedalaSettings
from knot_runner.config.strict import without
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalProgram, LocalResult, LocalTraining
from knot_runner.engine.seeds import generator
from knot_runner.engine.training import LocalWork, gradients_of, mean_loss
from knot_runner.methods.contract import ClientMessage, ClientWork
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import kept_means, kept_model, model_parts, plan_with
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts


def init(config: FedalaSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model.

    Raises:
        UserError: ``method.layers`` is larger than the number of layers of the model.
    """
    count = len(layer_starts(federation.layout))
    if config.layers > count:
        raise UserError(
            f"expected at most {count} (the number of layers of the model), got {config.layers}", "method.layers"
        )
    return averaging.init(config, federation)


def keep(config: FedalaSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the client's trained model, and the client's mixing weights W."""
    (result,) = work.trained
    return model_parts(result) | without(result.kept, "passes")


def deployed(config: FedalaSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the model that the client uses.

    With ``config.deployed=trained``, the client uses its latest model. Otherwise, the client mixes its latest model
    with the global model, using its latest mixing weights W. A client that has not trained uses the global model.
    """
    whole = averaging.deployed(config, state, federation, client)
    personal = kept_model(state, client)
    if personal is None or config.deployed == "trained":
        return personal or whole
    start = layer_starts(federation.layout)[-config.layers]
    mix = state.get(f"client/{client}/mix", torch.ones_like(personal.weights[start:]))
    return ClientModel(_mixed(start, personal.weights, whole.weights, mix), personal.buffers)


def layer_starts(layout: flat.FlatLayout) -> list[int]:
    """Return the index of each layer's first parameter in the flat vector of weights.

    A layer is a module with parameters.
    """
    starts: dict[str, int] = {}
    for field in layout.parameters:
        starts.setdefault(field.name.rpartition(".")[0], field.start)
    return list(starts.values())


def _with_mix(
    config: FedalaSettings, state: FederatedState, federation: Federation, request: LocalTraining
) -> LocalTraining:
    """Return ``request``, changed to train from the participant's mix if the participant has a model of its own."""
    personal = kept_model(state, request.client)
    if personal is None:
        return request
    start = layer_starts(federation.layout)[-config.layers]
    mix = state.get(f"client/{request.client}/mix")
    max_epochs = 1
    if mix is None:
        mix = torch.ones_like(personal.weights[start:])
        max_epochs = config.max_epochs
    settings = {"config": config, "start": start, "max_epochs": max_epochs}
    tensors = {"weights": personal.weights, "mix": mix}
    # for the FLOPs of one pass that learns W
    program = LocalProgram(train_from_mix, settings, tensors, further=config.share)
    return replace(request, program=program)


def train_from_mix(settings: Facts, work: LocalWork) -> LocalResult:
    """Local program: learn the mixing weights W, and train from the mixed model.

    Let v be the client's own model, and w the global model. The mixed model is v + (w - v) * W. The entries of W
    before index ``start`` are 1. The other entries are learned. For each batch, let g be the gradient of the loss at
    the mixed model. The learned entries change by ``-config.rate * g * (w - v)``, and are then clipped to [0, 1].

    Args:
        settings: ``config``: the settings of the method. ``start``: the index of the first mixed parameter.
            ``max_epochs``: the maximum number of passes over the examples from which W is learned.
        work: In ``work.tensors``, ``weights`` [P] is v. ``mix`` [p] holds the initial values of the learned entries.

    Returns:
        The mean training loss, and a dict. ``mix`` [p] holds the learned entries. ``passes`` is the number of passes.
    """
    config, start, max_epochs = itemgetter("config", "start", "max_epochs")(settings)
    request = work.request
    mix = work.tensors["mix"]
    model = work.model
    personal = work.tensors["weights"]
    sent = flat.flat_vectors(model)[0]
    draws = generator(request.seed, "fedala", request.round, request.client)
    count = max(1, round(config.share * len(request.rows)))
    chosen = torch.randperm(len(request.rows), generator=draws)[:count]
    examples = work.select(request.rows[chosen])
    rows, loss = work.objective()
    work.train_mode(model)
    last = [p for p, field in zip(model.parameters(), work.layout.parameters, strict=True) if field.start >= start]
    difference = (sent - personal)[start:]
    losses: list[float] = []
    buffers = request.start.buffers.to(sent.device)  # running statistics of the passes are discarded
    while len(losses) < max_epochs and not _settled(losses, config.window, config.threshold):
        total = 0.0
        for positions, inputs in examples.in_turn(request.recipe.batch_size):
            flat.load_flat(model, _mixed(start, personal, sent, mix), buffers)
            value = mean_loss(model, (chosen[positions], inputs), loss, rows)
            gradient = torch.cat([each.reshape(-1) for each in gradients_of(value, last)])
            mix = (mix - config.rate * gradient * difference).clamp(0, 1)
            total += float(value.detach()) * len(positions)
        losses.append(total / count)
    flat.load_flat(model, _mixed(start, personal, sent, mix), buffers)
    loss_of_training, steps = work.train()
    return LocalResult(loss_of_training, steps, {"mix": mix, "passes": torch.tensor(len(losses))})


def _settled(losses: list[float], window: int, threshold: float) -> bool:
    """Return whether the last ``window`` losses have a standard deviation below ``threshold``."""
    if len(losses) <= window:
        return False
    last = torch.tensor(losses[-window:], dtype=torch.float64)
    return float(last.std(correction=0)) < threshold


def _mixed(start: int, personal: Tensor, sent: Tensor, mix: Tensor) -> Tensor:
    """Return v + (w - v) W [P]: the global model w before index ``start``, mixed with ``mix`` [p] from ``start`` on."""
    return torch.cat([sent[:start], personal[start:] + (sent - personal)[start:] * mix])


FEDALA = replace(
    averaging.FEDAVG, init=init, plan=plan_with(_with_mix), deployed=deployed, keep=keep, one_model=False,
    observe=partial(kept_means, mix="mix", mix_passes="passes"),
)  # fmt: skip
