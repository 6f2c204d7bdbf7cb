"""Evaluation of a finished distillation, and access to its rounds and models in the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from knot_runner import metrics
from knot_runner.config.strict import digest
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.examples import selected_rows
from knot_runner.engine.execute import Executor
from knot_runner.engine.loop import key_of
from knot_runner.engine.requests import Predict, Ref, StageRequest, ref_of, request_title
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.store import Artifact, Store
from knot_runner.engine.tensor_file import Tensors, tensor_parts
from knot_runner.methods.contract import METHODS
from knot_runner.methods.party import PartyFederation, StageState
from knot_runner.metrics import Measures
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext, write_predictions
from knot_runner.pipelines.federations.texts import TextStore, unlabeled_texts
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, write_atomic, write_json

VECTORS_PER_LABEL = 400
#: Probabilities float32 [N, C] and labels int64 [N] of a test set.
Predictions = tuple[np.ndarray, np.ndarray]


def evaluate(
    context: RunContext, task: PartyTask, federation: PartyFederation, state: StageState, executor: Executor
) -> Facts:
    """Evaluate the models, write files with the predictions into the run's folder, and return the metrics.

    Two entries of the returned dict have the form metric -> data set -> value, as in :func:`measure_all`:

    - ``metrics``: metrics of the final models, or of the teachers if nothing was distilled
    - ``before``: metrics of the models before distillation, such as the pretrained global model

    Two other entries have the form model -> metric -> value:

    - ``teachers``: metrics of each teacher on its own test set
    - ``baselines``: metrics of each teacher on the global model's test set. If there are several teachers,
      the model ``ensemble`` predicts the mean of their probabilities. If ``method.view`` transforms the global model's
      images, teachers that belong to clients still see the original images.
    """
    coordinates = np.asarray(task.labels.coordinates, dtype=np.float64)
    student, before, teachers = trained_models(federation, state)
    tests = {party.name: party.test for party in federation.teachers if "test" in party.examples}
    teacher_p = _predictions(teachers, tests, executor)
    evaluated = "personalized"
    before_p = _predictions(dict.fromkeys(tests, before), tests, executor) if before else {}
    parties = parties_after(federation, state)
    if parties:  # each party keeps its own model
        after_p = _predictions(parties, tests, executor)
        before_p = teacher_p
    elif state.selected_epoch is not None:
        after_p = _predictions(dict.fromkeys(tests, student), tests, executor)
        evaluated = "global"
    else:  # nothing was distilled, so the result holds the teachers' scores
        after_p = teacher_p
    write_predictions(context.folder, after_p | {f"before/{name}": before_p[name] for name in before_p})
    # inputs to the student's last layer, for some of the global model's test examples (App. C)
    store: Store = executor.resources.store
    some = balanced_subset(federation.server.test, VECTORS_PER_LABEL, federation.seed, store)
    (features,) = executor([student.predict("features", some, "features")])
    arrays = {"vectors": features.tensors()["features"], "labels": store.get(*some).tensors()["labels"]}
    write_atomic(context.folder / "vectors.safetensors", tensor_parts(arrays))
    if not context.settings.on_images and context.settings.task.probe:
        asked = [model for model in (student, before) if model]
        asked += [teachers[party.name] for party in federation.clients]
        write_probe(context, task, asked, executor)
    facts = {
        "evaluated": evaluated,
        "metrics": measure_all(after_p, coordinates),
        "teachers": _measured(teacher_p, coordinates),
        "baselines": _measured(_baselines(teachers, federation, executor), coordinates),
    }
    if parties:
        facts |= {"parties": list(parties)}
    if before_p:
        facts |= {"before": measure_all(before_p, coordinates)}
    return facts


def _measured(predictions: dict[str, Predictions], coordinates: np.ndarray) -> dict[str, Measures]:
    """Return data set -> metric -> value."""
    return {name: measure_data_set(*prediction, coordinates) for name, prediction in predictions.items()}


def measure_data_set(probabilities: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> Measures:
    """Return every metric, given ``probabilities`` [N, C], ``labels`` [N], and ``coordinates`` [C, d] of classes."""
    return metrics.measured(metrics.TestSet(probabilities, probabilities.astype(np.float64), labels, coordinates))


def measure_all(predictions: dict[str, Predictions], coordinates: np.ndarray) -> dict[str, Measures]:
    """Return every metric of all data sets, as a dict metric -> data set -> value.

    The data set ``ALL`` stands for all data sets together. Its F1 and accuracy are computed on the pooled examples. Its
    semantic distance is the unweighted mean over data sets. The KNOT paper does not state these rules, but they agree
    with its Tables 2 to 4.
    """
    of_data_sets = _measured(predictions, coordinates)
    probabilities, labels = map(np.concatenate, zip(*predictions.values(), strict=True))
    table = {}
    for metric, value in measure_data_set(probabilities, labels, coordinates).items():
        values = {name: measures[metric] for name, measures in of_data_sets.items() if metric in measures}
        # The mean distance agrees with 24 of 24 rows of KNOT's tables, and the pooled accuracy with 8 of 8 rows.
        if metrics.METRICS[metric].over == "mean":
            value = float(np.mean(list(values.values())))
        table[metric] = {**values, "ALL": value}
    return table


def _baselines(
    teachers: dict[str, TrainedModel], federation: PartyFederation, executor: Executor
) -> dict[str, Predictions]:
    """Return the predictions of every teacher, and of the ensemble if there are several, on the global test set."""
    server = federation.server
    clients = {client.name for client in federation.clients}
    tests = {}
    for party in teachers:
        tests[party] = server.test
        if party in clients:  # clients see the original images, even if the server sees a view of the images
            tests[party] = server.originals.get("test", server.test)
    predictions = _predictions(teachers, tests, executor)
    if len(predictions) > 1:
        shares, labels = zip(*predictions.values(), strict=True)
        predictions["ensemble"] = np.mean(shares, axis=0, dtype=np.float64).astype(np.float32), labels[0]
    return predictions


def _predictions(models: dict[str, TrainedModel], tests: dict[str, Ref], executor: Executor) -> dict[str, Predictions]:
    """Return the predictions of each party's model on the party's test set, for parties that have a test set."""
    requests = {name: models[name].predict("predictions", tests[name]) for name in tests if name in models}
    predictions = {}
    for name, artifact in zip(requests, executor(list(requests.values())), strict=True):
        labels = executor.resources.store.get(*tests[name]).tensors()["labels"]
        predictions[name] = probabilities_of(artifact), labels.numpy()
    return predictions


def balanced_subset(examples: Ref, per_label: int, seed: int, store: Store) -> Ref:
    """Store a random subset with at most ``per_label`` examples per label; return the reference to the subset."""
    ref = (examples[0], digest({"of": examples, "per_label": per_label, "seed": seed}))

    def drawn() -> tuple[Tensors, Facts]:
        tensors = store.get(*examples).tensors()
        draw = numpy_generator(seed, "balanced")
        labels = tensors["labels"].numpy()
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        rows = np.sort(np.concatenate([draw.permutation(group)[:per_label] for group in groups]))
        return selected_rows(tensors, rows), {"images" if "pixels" in tensors else "texts": len(rows)}

    store.find_or_put(*ref, drawn)
    return ref


def write_probe(context: RunContext, task: PartyTask, models: list[TrainedModel], executor: Executor) -> None:
    """Write ``probe.json``: the predictions of ``models`` on sentences that differ in one word (KNOT App. D.2)."""
    rows = []
    for probe, spec in context.settings.task.probe.items():
        for template, words in itertools.product(spec["templates"], spec["words"]):
            rows.append((probe, template, list(words)))
    if not rows:
        return
    texts = [template.replace("{}", word) for _, template, words in rows for word in words]
    tokens = TextStore.of(context, task).put(unlabeled_texts(texts))
    artifacts = executor([model.predict("probe", tokens) for model in models])
    records = []
    for model, artifact in zip(models, artifacts, strict=True):
        probabilities = iter(probabilities_of(artifact).tolist())
        for probe, template, words in rows:
            values = list(itertools.islice(probabilities, len(words)))
            row = {"probe": probe, "template": template, "words": words}
            records.append({**row, "model": model.name, "probabilities": values})
    write_json(context.folder / "probe.json", records)


# ----------------------------------------------------------------------------------------------------- trained model


@dataclass(frozen=True)
class TrainedModel:
    """A network and its weights in the store."""

    name: str
    network: Network
    weights: Ref

    def predict(self, stage: Any, examples: Ref, output: Any = "logits") -> Predict:
        """Return the request to compute ``output`` (logits or features) of the model on stored ``examples``."""
        return Predict(stage, self.name, self.network, self.weights, examples, output)


def trained_models(
    federation: PartyFederation, state: StageState
) -> tuple[TrainedModel, TrainedModel | None, dict[str, TrainedModel]]:
    """Return the student, the global model before distillation, and a dict from each party to its teacher model.

    The global model is None if the method does not pretrain a global model.
    """
    network = federation.server.network
    student = TrainedModel("student", network, ref_of(state.student))
    before = TrainedModel("before", network, ref_of(state.before)) if state.before else None
    return student, before, _models_of(federation, state.weights)


def parties_after(federation: PartyFederation, state: StageState) -> dict[str, TrainedModel]:
    """Return the models of all parties and the server after mutual learning, by name; {} without mutual learning."""
    if not state.after:
        return {}
    return _models_of(federation, state.after | {federation.server.name: state.student})


def _models_of(federation: PartyFederation, weights: dict[str, str]) -> dict[str, TrainedModel]:
    """Return each party's model, given its stored ``weights`` by party. Students have the server's network."""
    networks = dict.fromkeys(weights, federation.server.network)
    networks |= {party.name: party.network for party in federation.teachers}
    return {party: TrainedModel(party, networks[party], ref_of(name)) for party, name in weights.items()}


def probabilities_of(predicted: Artifact) -> np.ndarray:
    """Return the softmax of the predicted logits, float32 [N, C]."""
    return torch.softmax(predicted.tensors()["logits"].double(), dim=1).float().numpy()


@dataclass(frozen=True)
class FinishedRound:
    """A finished round: the requests, the artifact of each request, and the method's state after the round."""

    requests: list[StageRequest]
    artifacts: list[Artifact]
    state: StageState


def finished_rounds(context: RunContext, federation: PartyFederation) -> Iterator[FinishedRound]:
    """Yield every round of a finished run, with the artifacts from the store.

    Raises:
        UserError: A stage is not in the store.
    """
    config = context.method
    method = METHODS[context.method.algorithm]
    state = method.init(config, federation)
    round = 0
    store = context.store
    while requests := method.plan(config, state, federation, round):
        artifacts: list[Artifact] = []
        for request in requests:
            artifact = store.find(*key_of(request))
            if artifact is None:
                raise UserError(
                    f"the {request_title(request)} was deleted. Rerun with a different paths.output_dir=DIR",
                    store.folder(*key_of(request)),
                )
            artifacts.append(artifact)
        state, _ = method.fold(config, state, federation, round, requests, artifacts)
        yield FinishedRound(requests, artifacts, state)
        round += 1
