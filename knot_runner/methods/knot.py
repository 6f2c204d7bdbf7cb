"""KNOT (arXiv 2110.02432): teachers train separately, then a student learns from their soft labels.

For an example of the transfer set, let p be the student's output, and q_k the output of teacher k. The student
minimizes

    sum_k W_k T(p, q_k)    (eq. 3)

T is a loss, such as the regularized transport cost of eq. 1 (:mod:`losses`). W_k is the weight of teacher k
(:mod:`weighting`). For differences from the paper and its code, see docs/papers/knot.md.

- Round 0 trains each party's local model on the party's own examples, and pretrains the global model on the server's
  labeled examples.
- Round 1 computes the soft labels of all teachers on the transfer set. If the weighting reads probability biases, round
  1 also computes them on random examples.
- Round 2 trains the student on the soft labels. The student starts from the pretrained global model.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from knot_runner.config.settings.methods.knot import KnotSettings, TeachersSettings
from knot_runner.engine.objectives import Objective
from knot_runner.engine.requests import Predict, Ref, StageRequest, StoredPart, Train, ref_of
from knot_runner.engine.store import Artifact
from knot_runner.methods.losses import Distillation, check_loss_and_weighting, distillation
from knot_runner.methods.party import PartyFederation, StageMethod, StageState, StoredParty, scored
from knot_runner.methods.weighting import needs_bias, probability_bias
from knot_runner.util.files import LogRow


def init(config: KnotSettings | TeachersSettings, federation: PartyFederation) -> StageState:
    """Return an empty state.

    Raises:
        UserError: The weighting is unknown, or the loss's solver does not support the coordinates of the classes.
    """
    if isinstance(config, KnotSettings):
        check_loss_and_weighting(config.loss, config.weighting, federation.label_points, "method")
    return StageState()


def plan(
    config: KnotSettings | TeachersSettings, state: StageState, federation: PartyFederation, round: int
) -> list[StageRequest]:
    """Return the requests of ``round``; [] when the method has finished."""
    steps = [plan_teachers, plan_soft_labels, plan_distillation]
    if isinstance(config, TeachersSettings):
        steps = [plan_teachers, plan_biases]
    if round >= len(steps):
        return []
    return steps[round](config, state, federation)


def fold(
    config: KnotSettings | TeachersSettings, state: StageState, federation: PartyFederation, round: int,
    requests: list[StageRequest], artifacts: list[Artifact],
) -> tuple[StageState, LogRow]:  # fmt: skip
    """Return the state after ``round``, and the log entries of the round."""
    state = deepcopy(state)
    row = {}
    for request, artifact in zip(requests, artifacts, strict=True):
        name = artifact.name
        info = artifact.info
        party = request.party
        score = info.get("best_score")
        if request.stage in ("local", "pretrain"):
            state.weights[party] = name
            row[party] = score
        elif request.stage == "soft_labels":
            split = "train"
            if party in state.soft:
                split = "valid"  # requests are in this order
            state.soft.setdefault(party, {})[split] = name
        elif request.stage == "bias":
            state.bias[party] = row[party] = probability_bias(artifact.tensors()["logits"])
        else:
            state.student = name
            state.selected_epoch = info["best_epoch"]
            row = {"epoch": state.selected_epoch}
            if score is not None:
                row["loss"] = -score
    if round == 0:
        state.before = state.student = state.weights[federation.server.name]
    return state, scored(row)


def plan_teachers(config: Any, state: StageState, federation: PartyFederation) -> list[StageRequest]:
    """Return requests that train every local model and the global model (KNOT section 6).

    The loss is the cross-entropy. Training uses the task's augmentation.
    """
    requests: list[StageRequest] = [federation.supervised(client, "local") for client in federation.clients]
    return [*requests, federation.supervised(federation.server, "pretrain")]


def plan_soft_labels(config: KnotSettings, state: StageState, federation: PartyFederation) -> list[StageRequest]:
    """Return requests for every teacher's inference on the transfer set.

    If ``config.weighting`` uses probability biases, the list also has the requests of :func:`plan_biases`.
    """
    requests: list[StageRequest] = []
    for party in federation.teachers:
        for examples in _transfer_splits(federation).values():
            requests.append(_predict("soft_labels", party, state, examples))
    if needs_bias(config.weighting):
        requests += plan_biases(config, state, federation)
    return requests


def plan_biases(config: Any, state: StageState, federation: PartyFederation) -> list[StageRequest]:
    """Return requests for every teacher's inference on random examples (KNOT section 5.2 and App. D.1).

    The outputs determine each teacher's probability bias; see :func:`~knot_runner.methods.weighting.probability_bias`.
    """
    assert federation.random is not None
    return [_predict("bias", party, state, federation.random) for party in federation.teachers]


def plan_distillation(config: KnotSettings, state: StageState, federation: PartyFederation) -> list[StageRequest]:
    """Return the request that trains the student on the teachers' soft labels (KNOT eq. 3).

    The student starts from the pretrained global model. Training uses no augmentation.
    """
    teachers = [party.name for party in federation.teachers]
    parts = {}
    for split, examples in _transfer_splits(federation).items():
        soft_labels = {name: ref_of(state.soft[name][split]) for name in teachers}
        parts[split] = StoredPart(examples, soft_labels)
    total = sum(party.size for party in federation.teachers)
    shares = [party.size / total for party in federation.teachers]
    biases = None
    if needs_bias(config.weighting):
        biases = [state.bias[name] for name in teachers]
    settings = Distillation(
        loss=config.loss,
        weighting=config.weighting,
        normalize=config.normalize,
        student_temperature=config.student_temperature,
        teacher_temperature=config.teacher_temperature,
        teachers=teachers,
        shares=shares,
        biases=biases,
        points=federation.label_points,
    )
    # The student is not augmented, because the soft labels were computed on the original examples.
    return [
        Train(
            stage="distill",
            party="student",  # not the method, so that all methods use the same batches and can be compared in pairs
            network=federation.server.network,
            start=ref_of(state.before),
            train=parts["train"],
            valid=parts.get("valid"),
            objective=Objective(distillation, vars(settings)),
            training=federation.training.distill,
            select="loss",
            seed=federation.seed,
        )
    ]


def _transfer_splits(federation: PartyFederation) -> dict[str, Ref]:
    """Return the training split of the transfer set, and the validation split if there is one."""
    examples = federation.transfer.examples
    return {split: examples[split] for split in ("train", "valid") if split in examples}


def _predict(stage: Any, party: StoredParty, state: StageState, examples: Ref) -> Predict:
    return Predict(stage, party.name, party.network, ref_of(state.weights[party.name]), examples)


#: KNOT. With ``method=teachers``, only KNOT's teachers are trained
KNOT = StageMethod(init, plan, fold)
