"""FedDF (Lin et al. 2020): after averaging, the server distills the global model from the round's clients.

Clients' logits on unlabeled examples are the targets of the averaged model, by any loss and weighting of KNOT
(:mod:`knot_runner.methods.losses`). Adds nothing to a method's state: each distillation starts anew.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings, FederatedSettings, FedMdSettings, ServerDistillation
from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Trained
from knot_runner.engine.federated.recipe import Phase, Recipe
from knot_runner.engine.objectives import Objective
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import Exchange
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.methods.weighting import WEIGHTINGS, equal_where_zero, needs_bias, probability_bias

#: The number by which the server's training is known, where clients' have theirs.
SERVER = -1
#: The one teacher of ensemble=logits.
ENSEMBLE = "ensemble"


def client_inferences(
    hp: AveragingSettings | FedMdSettings,
    state: FederatedState,
    federation: Federation,
    round: int,
    trained: list[Trained],
) -> list[Inference] | None:
    """Requests inference of each of the round's clients on the transfer set, then on the random examples, if the
    weighting uses biases; None in rounds that do not distill, and in a last one of heads alone."""
    spec = hp.server_distillation
    if spec is None or not spec.distills(round) or round >= federation.training.rounds:
        return None
    row_sets = [_examples(spec, federation, round).unique()]
    if needs_bias(spec.weighting):
        row_sets.append(federation.random)
    return [federation.inference(result.client, result.model, rows, "train") for rows in row_sets for result in trained]


def server_training(
    hp: AveragingSettings,
    state: FederatedState, federation: Federation, round: int, trained: list[Trained],
    logits: list[Tensor],
) -> list[LocalTraining]:  # fmt: skip
    """Requests the averaged model's training on the clients' ``logits``."""
    model = ClientModel(state["weights"], state["buffers"])
    assert hp.server_distillation is not None and federation.server is not None
    tested = federation.server.test
    return [distillation_request(hp, hp.server_distillation, federation, round, trained, logits, SERVER, model, tested)]


def distillation_request(
    hp: FederatedSettings, spec: ServerDistillation,
    federation: Federation, round: int, trained: list[Trained], logits: list[Tensor],
    student: int, model: ClientModel, tested: Tensor,
) -> LocalTraining:  # fmt: skip
    """The training of ``model``, known by the number ``student``, on the ``logits`` of the clients in ``trained``;
    ``tested``: rows of the test examples that it is measured on before and after, in rounds that are measured."""
    from knot_runner.methods.losses import distillation  # with optimal transport, which averaging alone needs not

    rows, places = _examples(spec, federation, round).unique(return_inverse=True)
    on_random = logits[len(trained) :]
    biases = [probability_bias(own) for own in on_random] or None
    sizes = [federation.clients[result.client].size for result in trained]
    shares = [size / sum(sizes) for size in sizes]
    teacher_logits = dict(zip([str(result.client) for result in trained], logits[: len(trained)], strict=True))
    weighting, weights = spec.weighting, None
    if federation.privacy is not None:
        from knot_runner.methods.federated.user_privacy import private_mean_logits

        teacher_logits = {ENSEMBLE: private_mean_logits(federation.privacy, federation, round, len(rows), logits)}
        weighting, shares = "A", [1.0]
    elif spec.ensemble == "logits":
        weights = client_weights(spec, logits[: len(trained)], shares, biases)
        teacher_logits = {ENSEMBLE: mean_logits(logits[: len(trained)], weights)}
        weighting, shares, biases = "A", [1.0], None
    settings = {
        "loss": spec.loss,
        "weighting": weighting,
        "normalize": spec.normalize,
        "student_temperature": spec.student_temperature,
        "teacher_temperature": spec.teacher_temperature,
        "teachers": list(teacher_logits),
        "shares": shares,
        "biases": biases,
        "points": federation.label_points,
    }
    number, program = 0 if student == SERVER else federation.network_number(student), None
    if spec.terms:
        from knot_runner.methods.federated.server_terms import term_program

        network, mean = federation.architectures[number].network, None if weights is None else weights[places]
        program = term_program(spec, network, federation.label_points, trained, mean)
    return LocalTraining(
        client=student,
        round=round,
        seed=federation.seed,
        start=model,
        rows=rows[places],
        test_rows=tested if federation.training.measures(round) else tested[:0],
        recipe=_recipe(hp, spec),
        objective=Objective(distillation, settings),
        program=program,
        inputs={name: own[places] for name, own in teacher_logits.items()},
        network=number,
        held=len(split_transfer(spec, federation)[1]),
    )


def fold_server(
    hp: AveragingSettings,
    state: FederatedState, federation: Federation, round: int, trained: list[Trained],
    logits: list[Tensor], distilled: list[Trained],
) -> Folded:  # fmt: skip
    """The distilled model in the place of the averaged one; its loss and steps, and in rounds that are measured the
    accuracy on the test examples before distillation (of the averaged model) and after. In private training also
    ``logits_clipped``, the share of the clients whose logits were clipped."""
    assert federation.server is not None
    (server,) = distilled
    tested = len(federation.server.test) if federation.training.measures(round) else 0
    row = distilled_row(distilled, tested)
    if federation.privacy is not None and trained:
        from knot_runner.methods.federated.user_privacy import logits_row

        row["logits_clipped"] = logits_row(federation.privacy, logits)["clipped"]
    return {**state, "weights": server.weights, "buffers": server.buffers}, row


def distilled_row(distilled: list[Trained], tested: int) -> RoundRow:
    """Returns the log entries of the models ``distilled`` in a round; ``tested``: total number of their test
    examples, 0 where they were not evaluated."""
    loss, steps = sum(one.loss for one in distilled) / len(distilled), sum(one.steps for one in distilled)
    row: dict[str, Any] = {"distill_loss": loss, "distill_steps": steps}
    if tested:
        before, after = sum(one.before for one in distilled), sum(one.after for one in distilled)
        row |= {"distill_tested": tested, "distill_before": before / tested, "distill_after": after / tested}
    return row


def drawn_examples(spec: ServerDistillation, federation: Federation, round: int) -> Tensor:
    """Rows of one epoch of the server's training, [n]: the transfer set, or with ``steps`` as many as these take, from
    one permutation of it after another."""
    transfer, _ = split_transfer(spec, federation)
    if spec.steps is None:
        return transfer
    wanted = spec.steps * spec.batch_size
    draws = generator(federation.seed, "transfer", round)
    passes = [torch.randperm(len(transfer), generator=draws) for _ in range(math.ceil(wanted / len(transfer)))]
    return transfer[torch.cat(passes)[:wanted]]


def split_transfer(spec: ServerDistillation, federation: Federation) -> tuple[Tensor, Tensor]:
    """Rows of the transfer set that the server trains on, and those for early stopping (the share ``valid``, the same
    in every round)."""
    assert federation.transfer is not None
    transfer = federation.transfer.train
    count = int(spec.valid * len(transfer))
    if not count:
        return transfer, transfer[:0]
    order = torch.randperm(len(transfer), generator=generator(federation.seed, "transfer valid"))
    return transfer[order[count:].sort().values], transfer[order[:count].sort().values]


def _examples(spec: ServerDistillation, federation: Federation, round: int) -> Tensor:
    """Rows of :func:`drawn_examples`, and after them those that are held out."""
    return torch.cat([drawn_examples(spec, federation, round), split_transfer(spec, federation)[1]])


def client_weights(
    spec: ServerDistillation, logits: list[Tensor], shares: list[float], biases: list[list[float]] | None
) -> Tensor:
    """W_k [n, K] of the clients by ``weighting`` (paper: A), from their ``logits`` (each [n, C]); not all 0."""
    q, dtype = torch.softmax(torch.stack(logits, dim=1).double() / spec.teacher_temperature, dim=-1), logits[0].dtype
    references = None if biases is None else torch.tensor(biases, dtype=dtype)
    return equal_where_zero(WEIGHTINGS[spec.weighting](q, torch.tensor(shares, dtype=dtype), references))


def mean_logits(logits: list[Tensor], weights: Tensor) -> Tensor:
    """sum_k W_k z_k / sum_k W_k [n, C] of the clients' ``logits`` (each [n, C]); ``weights`` [n, K]."""
    stacked = torch.stack(logits, dim=1).double()
    mean = (weights[:, :, None].double() * stacked).sum(1) / weights.double().sum(1, keepdim=True)
    return mean.to(logits[0].dtype)


def _recipe(hp: FederatedSettings, spec: ServerDistillation) -> Recipe:
    """Returns the training recipe, without augmentation, since the clients' logits are of the original images."""
    return Recipe(
        phases=(Phase(1 if spec.steps else spec.epochs),),
        batch_size=spec.batch_size,
        drop_last=False,
        lr=spec.lr,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        frozen_statistics=hp.batchnorm == "frozen",
        optimizer=spec.optimizer,
        cosine=spec.schedule == "cosine",
        check=spec.check,
        patience=spec.patience,
    )


DISTILLATION = Exchange(client_inferences, server_training, fold_server)
