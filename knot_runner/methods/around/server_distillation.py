"""FedDF (Lin et al. 2020): after averaging, the server distills the clients' models into the averaged model.

The averaged model is trained on unlabeled examples. Let z be its logits, and z_k the logits of client k. In the paper,
training minimizes

    KL(softmax(mean_k z_k) || softmax(z))

The settings ``ensemble=logits`` and ``weighting=A`` select this loss. Difference from the paper: all losses and
weightings of KNOT can be used, and also loss terms (:mod:`server_terms`).

In the code, the clients' logits are called second messages. Clients do not send them: the server computes them with
the clients' models. Distillation adds no entries to the state.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import FedMdSettings
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings, server_distillation
from knot_runner.config.settings.methods.server_distillation import ServerDistillation
from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Phase, Recipe, Trained
from knot_runner.engine.objectives import Objective
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import SERVER, ClientMessage, Method, State
from knot_runner.methods.federated.own_models import kept_models, model_parts
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow, ServerExamples
from knot_runner.methods.messages import Answers, Exchange
from knot_runner.methods.party import LabelPoints
from knot_runner.methods.weighting import WEIGHTINGS, equal_where_zero, needs_bias, probability_bias
from knot_runner.util.errors import UserError

#: The name of the single teacher (the ensemble of all clients) with ensemble=logits.
ENSEMBLE = "ensemble"


def with_distillation(method: Method, config: FederatedSettings) -> Method:
    """Return ``method`` with server distillation into the averaged model.

    The method is returned unchanged if ``config`` has no server distillation, or if the method already has an exchange
    of second messages.

    Raises:
        UserError: The method has no averaged model.
    """
    spec = server_distillation(config)
    if spec is None or method.exchange is not None:
        return method
    if method.fold is None and method.fold_each is None:
        raise UserError(
            f"needs a function 'fold' or 'fold_each', but method.algorithm={config.algorithm} has neither. Use null",
            "method.server_distillation",
        )
    exchange = Exchange(ask, answer, plan, fold, reads(spec))
    return replace(method, exchange=lambda config: exchange, facts=distilled_facts)


def reads(spec: ServerDistillation) -> Literal["each", "either"]:
    """Return ``each`` if the server needs every client's message; ``either`` if the mean of the messages suffices."""
    if spec.ensemble != "logits" or spec.weighting != "A":
        return "each"
    if spec.terms:
        from knot_runner.methods.distill.term import TERMS  # imports all loss terms, which other runs do not need

        # the server reads hidden layers of each client's model
        if any(TERMS[name].taps != "none" for name in spec.terms):
            return "each"
    return "either"


def ask(
    config: AveragingSettings | FedMdSettings, federation: Federation, round: int, client: int, model: ClientModel
) -> list[Inference]:
    """Return the inference requests for the logits of the client's trained ``model``.

    The first request is for the logits on the transfer set. If ``server_distillation.weighting`` needs probability
    biases, the second request is for the logits on randomly generated examples. The list is empty in rounds without
    distillation, and in rounds after ``training.rounds``.
    """
    spec = config.server_distillation
    if spec is None or not spec.distills(round) or round >= federation.training.rounds:
        return []
    rows = [_examples(spec, federation, round).unique()]
    if needs_bias(spec.weighting):
        rows.append(_server_examples(federation).random)
    return [federation.inference(client, model, part, "train") for part in rows]


def answer(config: FederatedSettings, federation: Federation, client: int, logits: list[Tensor]) -> ClientMessage:
    """Return a client's second message. ``logits``: one tensor of logits for each request that :func:`ask` returned.

    - part ``logits`` [n, C]: the client's logits on the transfer set
    - part ``bias`` [C]: the client's probability bias. This part exists only if the setting
      ``server_distillation.weighting`` names a weighting that uses probability biases
    """
    parts = {"logits": logits[0]}
    if len(logits) > 1:
        parts["bias"] = torch.tensor(probability_bias(logits[1]), dtype=logits[1].dtype)
    return parts


def plan(
    config: AveragingSettings | FedMdSettings, state: FederatedState, federation: Federation, round: int,
    answers: Answers,
) -> list[LocalTraining]:  # fmt: skip
    """Return the requests that train the students on the clients' logits, one request per student.

    With FedMD, the students are the participants' models. Otherwise, the only student is the server's averaged model.
    """
    students = answers.students
    if "weights" in state:
        students = {SERVER: ClientModel(state["weights"], state["buffers"])}
    return [_request(config, federation, round, answers, student, model) for student, model in students.items()]


def fold(
    config: AveragingSettings | FedMdSettings, state: FederatedState, federation: Federation, round: int,
    answers: Answers, distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Return the state with the distilled models, and the log entries of the distillation.

    The log entries are the loss and the number of steps. In rounds with an evaluation, they also include the test
    accuracy of the server's model before and after distillation. With FedMD, the accuracy is that of the clients'
    models on their own test examples.
    """
    if not distilled:
        return state, {}
    models = kept_models(distilled)
    if distilled[0].client == SERVER:
        models = model_parts(distilled[0])
    loss = 0.0
    steps = 0
    tested = 0
    before = 0
    after = 0
    for result in distilled:
        loss += result.loss
        steps += result.steps
        tested += len(_tested(federation, result.client))
        before += result.before
        after += result.after
    row: RoundRow = {"distill_loss": loss / len(distilled), "distill_steps": steps}
    if federation.training.measures(round) and tested:
        row |= {"distill_tested": tested, "distill_before": before / tested, "distill_after": after / tested}
    return {**state, **models}, row


def _tested(federation: Federation, student: int) -> Tensor:
    """Return the rows of the test examples for the model ``student`` (a client's number, or the server)."""
    return _server_examples(federation).test if student == SERVER else federation.clients[student].test


def _server_examples(federation: Federation) -> ServerExamples:
    assert federation.server is not None
    return federation.server


def _request(
    config: AveragingSettings | FedMdSettings, federation: Federation, round: int, answers: Answers, student: int,
    model: ClientModel,
) -> LocalTraining:  # fmt: skip
    """Return the request that trains ``model`` on the clients' ``answers``. ``student``: the number of the model."""
    from knot_runner.methods.losses import (
        Distillation,
        distillation,
    )  # imports optimal transport, which only distillation needs

    spec = config.server_distillation
    assert spec is not None
    rows, places = _examples(spec, federation, round).unique(return_inverse=True)
    each = answers.each
    teacher_logits = {str(sent.client): sent.parts["logits"] for sent in each}
    total = sum(sent.examples for sent in each)
    shares = [sent.examples / total for sent in each]
    biases: LabelPoints | None = None
    if needs_bias(spec.weighting):
        biases = [sent.parts["bias"].tolist() for sent in each]
    weighting = spec.weighting
    weights = None
    mean_logits = answers.mean.get("logits")
    if mean_logits is None and spec.ensemble == "logits":
        logits = torch.stack(list(teacher_logits.values()), dim=1)
        q = torch.softmax(logits.double() / spec.teacher_temperature, dim=-1)
        bias_kc = None
        if biases is not None:
            bias_kc = model.weights.new_tensor(biases)
        weights = equal_where_zero(WEIGHTINGS[spec.weighting](q, model.weights.new_tensor(shares), bias_kc))
        w = weights[:, :, None].double()
        mean_logits = (w * logits.double()).sum(1) / w.sum(1)  # sum_k W_k z_k / sum_k W_k
    if mean_logits is not None:
        teacher_logits = {ENSEMBLE: mean_logits.to(model.weights.dtype)}
        weighting = "A"
        shares = [1.0]
        biases = None
    settings = Distillation(
        loss=spec.loss,
        weighting=weighting,
        normalize=spec.normalize,
        student_temperature=spec.student_temperature,
        teacher_temperature=spec.teacher_temperature,
        teachers=list(teacher_logits),
        shares=shares,
        biases=biases,
        points=federation.label_points,
    )
    tested = _tested(federation, student)
    if not federation.training.measures(round):
        tested = tested[:0]
    number = 0 if student == SERVER else federation.network_number(student)
    program = None
    if spec.terms:
        from knot_runner.methods.around.server_terms import term_program

        if weights is not None:
            weights = weights[places]
        models = []
        if student == SERVER:
            models = [answers.students[sent.client] for sent in each]
        network = federation.architectures[number].network
        program = term_program(spec, network, federation.label_points, models, weights)
    return LocalTraining(
        client=student,
        round=round,
        seed=federation.seed,
        start=model,
        rows=rows[places],
        test_rows=tested,
        recipe=_recipe(config, spec),
        objective=Objective(distillation, vars(settings)),
        program=program,
        inputs={name: logits_of_client[places] for name, logits_of_client in teacher_logits.items()},
        network=number,
        held=len(split_transfer(spec, federation)[1]),
    )


def distilled_facts(rounds: int, rows: list[State]) -> State:
    """Return the entry ``distilled`` of a run's result; {} if there was no distillation.

    The entry summarizes all distillations. ``rows`` are the rows of the log.
    """
    distilled = [row for row in rows if "distill_loss" in row]
    if not distilled:
        return {}
    summary = {"rounds": len(distilled), "loss": distilled[-1]["distill_loss"]}
    measured = [row for row in distilled if "distill_after" in row]
    if measured:
        gain = 0.0
        for row in measured:
            before = row["distill_before"]
            after = row["distill_after"]
            gain += after - before
        summary |= {"before": before, "after": after, "gain": gain / len(measured)}
    return {"distilled": summary}


def drawn_examples(spec: ServerDistillation, federation: Federation, round: int) -> Tensor:
    """Return the row numbers [n] of the transfer examples in one epoch of distillation.

    Let E be the transfer examples that are not used for early stopping. By default, an epoch contains all of E. If
    ``spec.steps`` is set, an epoch contains ``spec.steps`` batches from successive random permutations of E.
    """
    transfer, _ = split_transfer(spec, federation)
    if spec.steps is None:
        return transfer
    wanted = spec.steps * spec.batch_size
    draws = generator(federation.seed, "transfer", round)
    passes = [torch.randperm(len(transfer), generator=draws) for _ in range(math.ceil(wanted / len(transfer)))]
    return transfer[torch.cat(passes)[:wanted]]


def split_transfer(spec: ServerDistillation, federation: Federation) -> tuple[Tensor, Tensor]:
    """Split the transfer examples; return the row numbers for training and the row numbers for early stopping.

    ``spec.valid`` is the fraction for early stopping. The split is the same in every round.
    """
    transfer = _server_examples(federation).transfer
    count = int(spec.valid * len(transfer))
    if not count:
        return transfer, transfer[:0]
    order = torch.randperm(len(transfer), generator=generator(federation.seed, "transfer valid"))
    return transfer[order[count:].sort().values], transfer[order[:count].sort().values]


def _examples(spec: ServerDistillation, federation: Federation, round: int) -> Tensor:
    """Return the rows of :func:`drawn_examples`, followed by the held-out rows."""
    return torch.cat([drawn_examples(spec, federation, round), split_transfer(spec, federation)[1]])


def _recipe(config: FederatedSettings, spec: ServerDistillation) -> Recipe:
    """Return the training configuration for distillation.

    There is no augmentation, because the clients' logits were computed on the original images.
    """
    return Recipe(
        phases=(Phase(1 if spec.steps else spec.epochs),),
        batch_size=spec.batch_size,
        drop_last=False,
        lr=spec.lr,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        frozen_statistics=config.batchnorm == "frozen",
        optimizer=spec.optimizer,
        cosine=spec.schedule == "cosine",
        check=spec.check,
        patience=spec.patience,
    )
