"""The generalization bound of a finished KNOT distillation (Theorem 5.2), computed from the run's stored stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.methods.knot import KnotSettings, SinkhornSettings
from knot_runner.engine.execute import Executor
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.requests import Ref, StoredPart, Train
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.knot import plan_distillation
from knot_runner.methods.losses import distillation
from knot_runner.methods.party import PartyFederation, StageState
from knot_runner.papers.knot.bound_terms import (
    BOUND_FORMS,
    DELTA,
    BoundTerms,
    bernstein,
    constant_best,
    hoeffding,
    label_diameter,
    last_layer_complexity,
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
from knot_runner.results import RunResult
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts


def bound_of_run(context: RunContext, result: RunResult) -> Facts:
    """Return the facts that :func:`measure_bound` computes for a finished run. ``result`` is the run's result.

    Raises:
        UserError: The run diverged or is not a KNOT distillation, its data have changed, or a stored stage is missing.
    """
    settings = context.settings
    if not isinstance(context.method, KnotSettings):
        raise UserError(f"expected a run of KNOT with a student, got method={settings.method.name}", context.folder)
    if result.status != "done":
        raise UserError("the run diverged, so it has no student", context.folder)
    load_plugins(settings.plugins)
    task = context.services.parties(context)
    if result.data != task.source_digest:
        raise UserError("the run did not use the data in paths.data_dir. Use the run's data folder", context.folder)
    federation = make_federation(context, task)
    # Planning the run again gives the keys under which the stages are stored.
    *_, last = finished_rounds(context, federation)
    with Executor(context.store, settings.hardware, context.data_root, settings.plugins, context.progress) as executor:
        return measure_bound(context, federation, last.state, executor)


#: Minimum number of distinct training texts, and of held-out texts. The variance is undefined for one text.
LEAST_TEXTS = 2


def measure_bound(context: RunContext, federation: PartyFederation, state: StageState, executor: Executor) -> Facts:
    """Return the content of ``bound.json``: the terms of each form of the bound, the losses, and notes.

    The student and the teachers are those of ``state``. No model is trained.

    Raises:
        UserError: The bound is undefined, for example because the run has no held-out examples or too few distinct
            texts.
    """
    config = context.method
    store = executor.resources.store
    student, before, _ = trained_models(federation, state)
    request = plan_distillation(config, state, federation)[0]
    if before is None or not isinstance(request, Train) or request.valid is None:
        raise UserError("the bound requires held-out examples, but the run has none", hint="Set method.bound=true")
    points = torch.tensor(request.objective.settings["points"], dtype=torch.float64)
    parts = []
    seen: set[bytes] = set()
    for stored in (request.train, request.valid):
        kept = first_rows(example_keys(store, stored.examples), seen)
        if len(kept) < LEAST_TEXTS:
            raise UserError(f"{len(kept)} distinct texts are too few. Use at least {LEAST_TEXTS}", "bound")
        parts.append(read_part((student, before), request, stored, kept, points, executor))
    train, valid = parts
    gap = valid.loss - train.loss
    start_gap = valid.start_loss - train.start_loss
    _, constant = constant_best(train.q, train.weights, points)
    classes = len(points)
    diameter = label_diameter(points)
    checkpoints = 1
    if request.training.select == "best":
        checkpoints += request.training.epochs
    bounds: dict[tuple[str, str], BoundTerms] = {}
    complexity = {}
    unknown = {}
    if why := undeclared(request.network):
        unknown["last_layer"] = why
    else:
        complexity["last_layer"] = facts = _last_layer(student, request, train, config, executor)
        for form in BOUND_FORMS:
            # the student's loss is an upper bound on the least loss in the class; the derived form needs the expected
            # loss, which the held-out mean estimates
            first = valid.loss if form == "derived" else train.loss
            second = second_term(form, classes, diameter, facts["value"])
            third = third_term(form, classes, diameter, len(train.losses))
            bounds[form, "last_layer"] = BoundTerms(first, second, third)
    for bound in (hoeffding, bernstein):
        bounds[bound.__name__, "held-out"] = bound(valid.losses, diameter, checkpoints)
    rows = []
    for (name, function_class), terms in bounds.items():
        reasons = vacuous(terms.total, diameter, constant)
        rows.append({"form": name, "class": function_class, **asdict(terms), "sum": terms.total, "vacuous": reasons})
    return {
        "run_id": context.run_id,
        "delta": DELTA,
        "classes": classes,
        "diameter": diameter,
        "texts": {"train": len(train.losses), "valid": len(valid.losses)},
        "dropped": {"train": train.dropped, "valid": valid.dropped},
        "checkpoints": checkpoints,
        "loss": {
            "train": train.loss,
            "valid": valid.loss,
            "gap": gap,
            "gap_less_start": gap - start_gap,
            "constant": constant,
        },
        "complexity": complexity,
        "undeclared": unknown,
        "rows": rows,
        "notes": list(_notes(config, train.largest_sum, diameter)),
    }


@dataclass(frozen=True)
class StudentPart:
    """Outputs of student and teachers on one part of the transfer set: the training texts, or the held-out texts.

    Duplicate texts are removed.

    Attributes:
        q: Probabilities of K teachers for N texts and C labels, shape [N, K, C].
        weights: Teacher weights of shape [N, K], normalized to sum to 1 for each text.
        largest_sum: The sum of a text's K weights before normalization, maximized over the texts.
        losses: The student's exact transport loss for each text, shape [N]. A loss is between 0 and C_M, the largest
            distance between two labels.
        start_loss: Mean loss of the model from which the student's training started.
        rows: The indices of the N texts among the stored examples.
        dropped: The number of removed duplicates.
    """

    q: Tensor
    weights: Tensor
    largest_sum: float
    losses: np.ndarray
    start_loss: float
    rows: Tensor
    dropped: int

    @property
    def loss(self) -> float:
        """Return the student's mean loss."""
        return float(self.losses.mean())


def read_part(
    models: tuple[TrainedModel, TrainedModel], request: Train, part: StoredPart, rows: Tensor, points: Tensor,
    executor: Executor,
) -> StudentPart:  # fmt: skip
    """Return the outputs of student and teachers on examples of ``part``.

    The teachers' probabilities and the weights of their losses are computed as in training. Then the weights are
    normalized.

    Args:
        models: The student, and the model from which the student's training started.
        request: The request to train the student.
        part: The stored training or held-out examples.
        rows: The indices of the examples to use.
        points: The coordinates of the labels, shape [C, d].
        executor: The executor that computes the predictions.
    """
    settings = request.objective.settings
    predicted = executor([model.predict("predictions", part.examples) for model in models])
    outputs = [artifact.tensors()["logits"] for artifact in predicted]
    answers = {name: executor.resources.store.get(*ref).tensors()["logits"] for name, ref in part.inputs.items()}
    derived, _ = distillation(settings, ObjectiveInputs(torch.empty(0), answers, lambda: outputs[1]))
    q = derived["targets"][rows].double()
    trained_weights = derived["weights"][rows]
    weights = normalized_weights(trained_weights)
    losses = []
    for logits in outputs:
        shares = torch.softmax(logits[rows].double() / settings["student_temperature"], 1)
        losses.append(transport_losses(shares, q, weights, points).numpy())
    largest_sum = float(trained_weights.sum(1).max())
    return StudentPart(q, weights, largest_sum, losses[0], float(losses[1].mean()), rows, len(logits) - len(rows))


def example_keys(store: Store, examples: Ref) -> list[bytes]:
    """Return a key for each stored example. Examples with the same model input have the same key."""
    tensors = store.get(*examples).tensors()
    if "pixels" in tensors:
        return [image.tobytes() for image in tensors["pixels"].numpy()]
    texts = np.split(tensors["ids"].numpy(), tensors["offsets"][1:-1].numpy())
    return [ids.tobytes() + second.tobytes() for ids, second in zip(texts, tensors["second"].numpy(), strict=True)]


def first_rows(keys: list[bytes], seen: set[bytes]) -> Tensor:
    """Return the index of each key that occurs neither in ``seen`` nor earlier in ``keys``.

    These keys are added to ``seen``.
    """
    rows = []
    for row, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def _last_layer(
    student: TrainedModel, request: Train, train: StudentPart, config: KnotSettings, executor: Executor
) -> dict[str, float]:
    """Return the quantities of :func:`last_layer_complexity` for the student.

    The student's logits are divided by its temperature, so these quantities are divided by the temperature, too.
    """
    head = student.network.head
    weights = executor.resources.store.get(*student.weights).tensors()
    (predicted,) = executor([student.predict("features", request.train.examples, "features")])
    features = predicted.tensors()["features"][train.rows].double()
    features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)  # for the bias
    layer = torch.cat([weights[f"{head}weight"].double(), weights[f"{head}bias"].double()[:, None]], dim=1)
    facts = last_layer_complexity(features, layer, generator(request.seed, "rademacher"))
    return {name: value / config.student_temperature for name, value in facts.items()}


def _notes(config: KnotSettings, most: float, diameter: float) -> Iterator[str]:
    """Yield one line for each part of the training objective that the bound does not cover.

    ``most``: the maximum over texts of the sum of teacher weights in training. ``diameter``: C_M.
    """
    if not config.normalize:
        yield (
            f"weights: not normalized in training (method.normalize=false), with sums up to {most:.3g}. Here, they are "
            f"normalized, since the bound is for a loss in [0, C_M] (otherwise, C_M would be {most * diameter:.3g})"
        )
    if not isinstance(config.loss, SinkhornSettings):
        yield (f"loss: trained on {config.loss.name}, but the bound is for the student's 1-Wasserstein loss")
    elif config.loss.solver in ("newton", "geomloss"):
        yield (f"epsilon: trained at {config.loss.epsilon:g}, but the bound is for the exact loss (eps = 0)")


STUDENT_MEASURES.update(bound=measure_bound)
