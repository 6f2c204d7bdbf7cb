"""The generalization bound of a finished distillation (KNOT Theorem 5.2), computed from its stages.

The stages are found in the store by planning the run again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.methods.knot import KnotSettings, SinkhornSettings
from knot_runner.engine.examples import IMAGE_TENSORS, ImageData, normalized
from knot_runner.engine.execute import Executor
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.requests import Ref, StoredPart, Train
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.knot import plan_distillation
from knot_runner.methods.losses import distillation, solver_of
from knot_runner.methods.party import PartyFederation
from knot_runner.methods.weighting import needs_bias
from knot_runner.papers.knot.bound_terms import (
    BOUND_FORMS,
    DELTA,
    BoundTerms,
    affine_matrix,
    bernstein,
    constant_best,
    dense_layers,
    hoeffding,
    label_diameter,
    last_layer_complexity,
    norm_complexity,
    normalized_weights,
    second_term,
    third_term,
    transport_losses,
    undeclared,
    vacuous,
)
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.distillation import STUDENT_MEASURES
from knot_runner.pipelines.parties.evaluation import TrainedModel, finished_rounds, trained_models
from knot_runner.pipelines.parties.setup import make_federation
from knot_runner.pipelines.rounds import State
from knot_runner.results import RunResult
from knot_runner.transport import transport_loss
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts


def bound_of_run(context: RunContext, result: RunResult) -> Facts:
    """Return :func:`~knot_runner.papers.knot.bound.measure_bound` for the finished run of ``context``.

    Nothing is trained. ``result``: the run's result.

    Raises:
        UserError: The run is not a KNOT distillation, or diverged; the data have changed; or a stage is not in the
            store.
    """
    config, settings = context.method, context.settings
    if not isinstance(config, KnotSettings):
        raise UserError(f"expected a run of KNOT with a student, got {settings.method.name}", context.folder)
    if result.status != "done":
        raise UserError("the run diverged, so it has no student", context.folder)
    load_plugins(settings.plugins)
    task = context.services.parties(context)
    if result.data != task.source_digest:
        raise UserError("the run used different data. Set paths.data_dir to the run's data folder", context.folder)
    bias = config.bias if needs_bias(config.weighting) else None
    federation = make_federation(context, task, bias)
    *_, last = finished_rounds(context, federation)
    with Executor(context.store, settings.hardware, context.data_root, settings.plugins, context.progress) as executor:
        return measure_bound(context, federation, last.state, executor)


#: Of each part: the variance needs two.
LEAST_TEXTS = 2
#: Training texts on which the loss that was trained is compared with the exact one.
EPSILON_TEXTS = 2000


def measure_bound(context: RunContext, federation: PartyFederation, state: State, executor: Executor) -> Facts:
    """Return the bound's record: terms for each form and function class, losses, and explanatory notes.

    The function reads the stages that ``state`` names, and runs inference with the student on the transfer set.

    Raises:
        UserError: The loss cannot be bounded.
    """
    config, store = context.method, executor.resources.store
    student, before, _ = trained_models(federation, state)
    request = plan_distillation(config, state, federation)[0]
    if before is None or not isinstance(request, Train) or request.valid is None:
        raise UserError("the bound requires held-out examples, but the run has none", hint="Set method.bound=true")
    train_rows, seen = first_rows(example_keys(store, request.train.examples), set())
    valid_rows, _ = first_rows(example_keys(store, request.valid.examples), seen)
    train = read_part((student, before), request, request.train, train_rows, executor)
    valid = read_part((student, before), request, request.valid, valid_rows, executor)
    least = min(len(train.p), len(valid.p))
    if least < LEAST_TEXTS:
        raise UserError(f"{least} distinct texts are too few. Use at least {LEAST_TEXTS}", "bound")
    points = torch.tensor(request.objective.settings["points"], dtype=torch.float64)
    parts = {"train": train, "valid": valid}
    losses = {name: _losses(part.p, part, points) for name, part in parts.items()}
    means = {name: float(values.mean()) for name, values in losses.items()}
    gap = means["valid"] - means["train"]
    start_gap = float(_losses(valid.start, valid, points).mean() - _losses(train.start, train, points).mean())
    _, constant = constant_best(train.q, normalized_weights(train.weights), points)
    complexities, refused = _complexities(student, request, train, config, executor)
    classes = len(points)
    diameter = label_diameter(points)
    checkpoints = request.training.epochs + 1 if request.training.select == "best" else 1
    rows = []

    def add(form: str, function_class: str, terms: BoundTerms) -> None:
        why = vacuous(terms.total, diameter, constant)
        rows.append({"form": form, "class": function_class, **asdict(terms), "sum": terms.total, "vacuous": why})

    for function_class, facts in complexities.items():
        for form in BOUND_FORMS:
            # the student's loss, an upper bound on the least loss in its class; in expectation for the derived form,
            # which the held-out mean estimates
            first = means["valid" if form == "derived" else "train"]
            second = second_term(form, classes, diameter, facts["value"])
            third = third_term(form, classes, diameter, len(losses["train"]))
            add(form, function_class, BoundTerms(first, second, third))
    for bound in (hoeffding, bernstein):
        add(bound.__name__, "held-out", bound(losses["valid"], diameter, checkpoints))
    return {
        "run_id": context.run_id,
        "delta": DELTA,
        "classes": classes,
        "diameter": diameter,
        "texts": {name: len(values) for name, values in losses.items()},
        "dropped": {name: part.dropped for name, part in parts.items()},
        "checkpoints": checkpoints,
        "loss": {**means, "gap": gap, "gap_less_start": gap - start_gap, "constant": constant},
        "complexity": complexities,
        "undeclared": refused,
        "rows": rows,
        "notes": _notes(config, train, losses["train"], points, diameter),
    }


@dataclass(frozen=True)
class StudentPart:
    """Outputs of student and teachers on one part of the transfer set, without duplicate texts.

    Attributes:
        p: Probabilities [N, C] of the student.
        start: Probabilities [N, C] of the student's initial model.
        q: Probabilities [N, K, C] of the teachers.
        weights: Teacher weights [N, K] in training.
        rows: Rows [N] of the stored examples.
        dropped: Number of removed duplicates.
    """

    p: Tensor
    start: Tensor
    q: Tensor
    weights: Tensor
    rows: Tensor
    dropped: int


def read_part(
    models: tuple[TrainedModel, TrainedModel], request: Train, part: StoredPart, rows: Tensor, executor: Executor
) -> StudentPart:
    """Return the models' outputs on the stored examples ``rows`` of ``part``.

    ``models``: the student and its initial model. The training objective computes the targets and weights.
    """
    store, settings = executor.resources.store, request.objective.settings
    artifacts = executor([model.predict("predictions", part.examples) for model in models])
    logits, start_logits = (artifact.tensors()["logits"] for artifact in artifacts)
    temperature = settings["student_temperature"]
    p = torch.softmax(logits[rows].double() / temperature, 1)
    start = torch.softmax(start_logits[rows].double() / temperature, 1)
    answers = {name: store.get(*ref).tensors()["logits"] for name, ref in part.inputs.items()}
    derived, _ = distillation(settings, ObjectiveInputs(torch.empty(0), answers, lambda: start_logits))
    q, weights = derived["targets"][rows].double(), derived["weights"][rows]
    return StudentPart(p, start, q, weights, rows, len(logits) - len(rows))


def example_keys(store: Store, examples: Ref) -> list[bytes]:
    """Return each stored example's model input as bytes (token ids or pixels), for detecting duplicates."""
    tensors = store.get(*examples).tensors()
    if "pixels" in tensors:
        return [image.tobytes() for image in tensors["pixels"].numpy()]
    ids, offsets, second = (tensors[name].numpy() for name in ("ids", "offsets", "second"))
    return [ids[offsets[i] : offsets[i + 1]].tobytes() + second[i].tobytes() for i in range(len(second))]


def first_rows(keys: list[bytes], seen: set[bytes]) -> tuple[Tensor, set[bytes]]:
    """Return the rows whose key is neither in ``seen`` nor in an earlier row, and the set of all keys so far."""
    first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in seen}
    return torch.tensor(sorted(first.values()), dtype=torch.int64), seen | set(keys)


def _losses(p: Tensor, part: StudentPart, points: Tensor) -> np.ndarray:
    """Return the loss of ``p`` [N, C] on each text [N], in [0, C_M]."""
    return transport_losses(p, part.q, normalized_weights(part.weights), points).numpy()


def _complexities(
    student: TrainedModel, request: Train, train: StudentPart, config: KnotSettings, executor: Executor
) -> tuple[dict[str, Facts], dict[str, str]]:
    """Return two dicts: function class -> its complexity and related quantities, and function class -> why it has none.

    The logits are divided by the student's temperature, and so are the complexities.
    """
    refused, complexities = undeclared(request.network), {}
    store, examples, head = executor.resources.store, request.train.examples, student.network.head
    weights = store.get(*student.weights).tensors()
    if "last_layer" not in refused:
        (predicted,) = executor([student.predict("features", examples, "features")])
        features = predicted.tensors()["features"][train.rows].double()
        features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)  # for the bias
        layer = affine_matrix(weights[f"{head}weight"], weights[f"{head}bias"])
        complexities["last_layer"] = last_layer_complexity(features, layer, generator(request.seed, "rademacher"))
    if "norms" not in refused:
        tensors = store.get(*examples).tensors()
        inputs = normalized(ImageData(*(tensors[name] for name in IMAGE_TENSORS)), train.rows, torch.float64)
        complexities["norms"] = {"value": norm_complexity(inputs, dense_layers(weights, head))}
    for facts in complexities.values():
        for name in facts:
            facts[name] /= config.student_temperature
    return complexities, refused


def _notes(config: KnotSettings, train: StudentPart, exact: np.ndarray, points: Tensor, diameter: float) -> list[str]:
    """Return one line for each part of the training objective that the bound does not cover."""
    notes, most = [], float(train.weights.sum(1).max())
    if not config.normalize:
        notes.append(
            f"weights: not normalized in training (method.normalize=false), with sums up to {most:.3g}. Here, they are "
            f"normalized, since the bound is for a loss in [0, C_M] (otherwise, C_M would be {most * diameter:.3g})"
        )
    if not isinstance(config.loss, SinkhornSettings):
        return [*notes, f"loss: trained on {config.loss.name}, but the bound is for the student's 1-Wasserstein loss"]
    loss, some = config.loss, slice(0, EPSILON_TEXTS)
    if loss.solver in ("newton", "geomloss"):
        costs = transport_loss(train.p[some, None], train.q[some], points, solver_of(loss))
        trained = float((costs * normalized_weights(train.weights[some])).sum(1).mean())
        notes.append(
            f"epsilon: trained with {loss.solver} at {loss.epsilon:g}. On {len(costs)} training texts, the exact loss "
            f"(eps = 0) is {float(exact[some].mean()):.4f}, and with the settings of training {trained:.4f}"
        )
    return notes


STUDENT_MEASURES.update(bound=measure_bound)
