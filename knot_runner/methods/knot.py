"""KNOT (arXiv 2110.02432).

Teachers train separately. Then a student minimizes the weighted sum of its distances to the teachers' soft labels.

Round 0 trains the local models and the pretrained global model. Round 1 computes the soft labels of all teachers on the
transfer set. If the weighting reads probability biases, round 1 also computes these on random examples. Round 2
distills into the pretrained global model.

State: ``weights/<party>``, ``soft/<party>/<split>``, ``student`` and ``before`` are names of artifacts;
``bias/<party>`` are lists.
"""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.methods.knot import KnotSettings, TeachersSettings
from knot_runner.engine.objectives import Objective
from knot_runner.engine.requests import Predict, Ref, StageRequest, StoredPart, Train, ref_of
from knot_runner.engine.store import Artifact
from knot_runner.methods.contract import RoundMethod, State, scored
from knot_runner.methods.losses import check_loss_and_weighting, distillation
from knot_runner.methods.party import PartyFederation, StoredParty
from knot_runner.methods.weighting import needs_bias, probability_bias


def init(config: KnotSettings | TeachersSettings, federation: PartyFederation) -> State:
    """Return an empty state, after checking that the loss and the weighting exist and fit the labels."""
    if isinstance(config, KnotSettings):
        check_loss_and_weighting(config.loss, config.weighting, federation.label_points, "method")
    return {}


def plan(
    config: KnotSettings | TeachersSettings, state: State, federation: PartyFederation, round: int
) -> list[StageRequest]:
    """Return the requests of this round; [] when the method has finished."""
    steps = [plan_teachers, plan_soft_labels, plan_distillation]
    if isinstance(config, TeachersSettings):
        steps = [plan_teachers, plan_biases]
    return steps[round](config, state, federation) if round < len(steps) else []


def fold(
    config: KnotSettings | TeachersSettings, state: State, federation: PartyFederation, round: int,
    requests: list[StageRequest], artifacts: list[Artifact],
) -> tuple[State, State]:  # fmt: skip
    """Return the next state and the round's log entries."""
    state, row = dict(state), {}
    for request, artifact in zip(requests, artifacts, strict=True):
        name = f"{artifact.stage}/{artifact.key}"
        if request.stage in ("local", "pretrain"):
            state[f"weights/{request.party}"] = name
            row[request.party] = artifact.info["best_score"]
        elif request.stage == "soft_labels":
            split = "valid" if f"soft/{request.party}/train" in state else "train"  # the order of the requests
            state[f"soft/{request.party}/{split}"] = name
        elif request.stage == "bias":
            state[f"bias/{request.party}"] = row[request.party] = probability_bias(artifact.tensors()["logits"])
        else:
            state["student"], state["selected_epoch"] = name, artifact.info["best_epoch"]
            score = artifact.info["best_score"]
            row = {"epoch": artifact.info["best_epoch"], "loss": None if score is None else -score}
    if round == 0:
        state["before"] = state["student"] = state[f"weights/{federation.server.name}"]
    return state, scored(row)


def plan_teachers(config: Any, state: State, federation: PartyFederation) -> list[StageRequest]:
    """Return requests that train every local model and the global model with cross-entropy (section 6).

    Teachers use the task's augmentation. The student does not, because soft labels belong to the original examples.
    """
    return [
        federation.supervised(party, "pretrain" if party == federation.server else "local")
        for party in federation.teachers
    ]


def plan_soft_labels(config: KnotSettings, state: State, federation: PartyFederation) -> list[StageRequest]:
    """Return requests for every teacher's inference on the transfer set.

    If the weighting reads biases, also return requests for the random examples.
    """
    requests: list[StageRequest] = [
        _predict("soft_labels", party, state, examples)
        for party in federation.teachers
        for examples in _transfer_splits(federation).values()
    ]
    return requests + (plan_biases(config, state, federation) if needs_bias(config.weighting) else [])


def plan_biases(config: Any, state: State, federation: PartyFederation) -> list[StageRequest]:
    """Return requests for every teacher's inference on the random examples (section 5.2, App. D.1)."""
    assert federation.random is not None
    return [_predict("bias", party, state, federation.random) for party in federation.teachers]


def plan_distillation(config: KnotSettings, state: State, federation: PartyFederation) -> list[StageRequest]:
    """Return the request that trains the student on the soft labels, starting from the global model (eq. 3)."""
    teachers = [party.name for party in federation.teachers]
    parts = {
        split: StoredPart(examples, {name: ref_of(state[f"soft/{name}/{split}"]) for name in teachers})
        for split, examples in _transfer_splits(federation).items()
    }
    total = sum(party.size for party in federation.teachers)
    settings = {
        "loss": config.loss,
        "weighting": config.weighting,
        "normalize": config.normalize,
        "student_temperature": config.student_temperature,
        "teacher_temperature": config.teacher_temperature,
        "teachers": teachers,
        "shares": [party.size / total for party in federation.teachers],
        "biases": [state[f"bias/{name}"] for name in teachers] if needs_bias(config.weighting) else None,
        "points": federation.label_points,
    }
    return [
        Train(
            stage="distill",
            party="student",  # not the method: all methods see the same batches, so they can be compared in pairs
            network=federation.server.network,
            start=ref_of(state["before"]),
            train=parts["train"],
            valid=parts.get("valid"),
            objective=Objective(distillation, settings),
            training=federation.training.distill,
            select="loss",
            seed=federation.seed,
        )
    ]


def _transfer_splits(federation: PartyFederation) -> dict[str, Ref]:
    """Return the train part of the transfer set, then the valid part if the set has one."""
    examples = federation.transfer.examples
    return {split: examples[split] for split in ("train", "valid") if split in examples}


def _predict(stage: Any, party: StoredParty, state: State, examples: Ref) -> Predict:
    return Predict(stage, party.name, party.network, ref_of(state[f"weights/{party.name}"]), examples)


#: KNOT, and the training of its teachers only
KNOT = RoundMethod(init, plan, fold)
