"""APFL (Deng et al. 2020, Algorithm 1): a client uses alpha v + (1 - alpha) w, a mix of its own and the global model.

v is the client's own model, w the global model, and f the client's loss. In every step of local training, w takes a
gradient step on f(w), and v takes a gradient step on f(alpha v + (1 - alpha) w). An adaptive alpha changes in the first
step of a round, with the learning rate eta (eq. 10):

    alpha <- alpha - eta <v - w, gradient at the mixed model>, clipped to [0, 1]

v starts from the w of the first round in which the client takes part.

Difference from some public code: we mix the models, as in the paper. The code mixes the models' outputs.

State, in addition to FedAvg's:

- ``client/<k>/weights``: v
- ``client/<k>/buffers``: the running statistics of the mixed model
- ``client/<k>/alpha``: the client's alpha, a scalar
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import ApflSettings
from knot_runner.config.strict import without
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalProgram, LocalResult, LocalTraining
from knot_runner.engine.training import LocalWork, gradients_of, mean_loss, take_step
from knot_runner.methods.contract import ClientMessage, ClientWork
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import kept_means, kept_model, plan_with
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.files import Facts


def keep(config: ApflSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the client's own model and the client's alpha."""
    return without(work.trained[0].kept, "loss")


def deployed(config: ApflSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the mix of the client's own model and the current global model.

    A client that has not trained uses the global model.
    """
    model = averaging.deployed(config, state, federation, client)
    own_model = kept_model(state, client)
    if own_model is None:
        return model
    return ClientModel(
        _mixed(float(state[f"client/{client}/alpha"]), own_model.weights, model.weights), own_model.buffers
    )


def _with_own(
    config: ApflSettings, state: FederatedState, federation: Federation, request: LocalTraining
) -> LocalTraining:
    """Return ``request``, changed to train the received model and the participant's own model in the same steps."""
    personal = kept_model(state, request.client) or request.start
    alpha = state.get(f"client/{request.client}/alpha", torch.tensor(config.alpha, dtype=torch.float64))
    tensors = {"weights": personal.weights, "buffers": personal.buffers, "alpha": alpha}
    program = LocalProgram(train_mixture, {"adaptive": config.adaptive}, tensors, further=request.recipe.epochs)
    return replace(request, program=program)


def train_mixture(settings: Facts, work: LocalWork) -> LocalResult:
    """Local program: train a client's own model and the global model together.

    For the equations, see the module's docstring.

    Args:
        settings: The entry ``adaptive`` tells whether alpha is trained.
        work: ``work.tensors`` holds ``alpha``, and the ``weights`` [P] and ``buffers`` [Q] of the client's own model.

    Returns:
        The mean loss of the global model, and a dict of tensors. In the dict, ``loss`` is the mean loss of the mixed
        model. The other entries are the new values of ``work.tensors``.
    """
    alpha = float(work.tensors["alpha"])
    device = next(work.model.parameters()).device
    personal = copy.deepcopy(work.model)
    mixed = copy.deepcopy(work.model)
    for module in (personal, mixed):
        flat.load_flat(module, work.tensors["weights"], work.tensors["buffers"])
    rows, loss = work.objective()
    optimizer = work.optimizer(work.model)
    own_optimizer = work.optimizer(personal)
    for module in (work.model, mixed):
        work.train_mode(module)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    steps = 0
    for batch in work.batches():
        with torch.no_grad():
            for parameter, v, w in zip(mixed.parameters(), personal.parameters(), work.model.parameters(), strict=True):
                parameter.copy_(_mixed(alpha, v, w))
        mixed_loss = mean_loss(mixed, batch, loss, rows)
        gradients = gradients_of(mixed_loss, list(mixed.parameters()))
        step_alpha = alpha
        if settings["adaptive"] and not steps:
            parts = zip(gradients, personal.parameters(), work.model.parameters(), strict=True)
            with torch.no_grad():
                slope = float(sum(((v - w) * gradient).double().sum() for gradient, v, w in parts))
            alpha = min(max(alpha - work.request.recipe.lr * slope, 0.0), 1.0)  # eq. 10
        sent_loss = mean_loss(work.model, batch, loss, rows)
        take_step(optimizer, sent_loss)
        for parameter, gradient in zip(personal.parameters(), gradients, strict=True):
            if parameter.requires_grad:
                parameter.grad = step_alpha * gradient
        own_optimizer.step()
        totals += torch.stack([sent_loss, mixed_loss]).detach()
        steps += 1
    sent_mean, mixed_mean = (totals / max(steps, 1)).tolist()
    kept = {
        "weights": flat.flat_vectors(personal)[0],
        "buffers": flat.flat_vectors(mixed)[1],
        "alpha": torch.tensor(alpha, dtype=torch.float64),
        "loss": torch.tensor(mixed_mean, dtype=torch.float64),
    }
    return LocalResult(sent_mean, steps, kept)


def _mixed(alpha: float, personal: Tensor, sent: Tensor) -> Tensor:
    return alpha * personal + (1 - alpha) * sent


APFL = replace(
    averaging.FEDAVG, plan=plan_with(_with_own), deployed=deployed, keep=keep, one_model=False,
    observe=partial(kept_means, alpha="alpha", own_loss="loss"),
)  # fmt: skip
