"""After a method is through: predictions on every test set, measures, [CLS] vectors and probes, written as records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from knot_runner import metrics
from knot_runner.config.settings import Settings
from knot_runner.config.strict import digest
from knot_runner.data.tasks import Examples, TextTask
from knot_runner.engine.commit import save_bytes
from knot_runner.engine.execute import Executor
from knot_runner.engine.requests import Predict, Ref
from knot_runner.engine.store import Store
from knot_runner.methods.federation import Federation
from knot_runner.models.tokens import make_tokenizer
from knot_runner.pipelines.text_federation import balanced_subset, load_vocabulary, save_texts
from knot_runner.util.files import write_atomic, write_json

VECTORS_PER_LABEL = 400


@dataclass(frozen=True)
class _Model:
    """A trained model as evaluation sees it: whose network it has, and its weights."""

    name: str
    party: str
    weights: Ref


def evaluate(
    settings: Settings,
    task: TextTask,
    federation: Federation,
    state: dict[str, Any],
    executor: Executor,
    folder: Path,
) -> dict[str, Any]:
    """Write ``predictions``, ``vectors`` and ``probe`` into ``folder`` and return the measures.

    Keys: ``metrics`` (after the method; of teachers alone, each on its own test set), ``before`` (the pretrained global
    model), ``teachers`` (each on its own test set): measure -> data set -> value, see :func:`metrics.measure_all`.
    """
    coordinates = np.asarray(task.labels.coordinates, dtype=np.float64)
    student = _Model("student", federation.server, _ref(state["student"]))
    before = _Model("before", federation.server, _ref(state["before"]))
    tests = [name for name in federation.teachers if ("test" in task.datasets[name].splits)]
    after_p, before_p = (_on_tests(model, tests, federation, executor) for model in (student, before))
    own = {
        party: _on_tests(_Model(party, party, _ref(state[f"weights/{party}"])), [party], federation, executor)[party]
        for party in tests
    }
    if "selected_epoch" not in state:  # nothing was distilled: the teachers' own scores are the result
        after_p = own
    arrays = {}
    for prefix, predictions in (("", after_p), ("before/", before_p)):
        for name, (probabilities, labels) in predictions.items():
            arrays[f"{prefix}{name}.probabilities"] = torch.from_numpy(probabilities)
            arrays[f"{prefix}{name}.labels"] = torch.from_numpy(labels)
    write_atomic(folder / "predictions.safetensors", save_bytes(arrays))
    _write_vectors(student, federation, executor, folder)
    _write_probe(settings, task, federation, state, executor, folder)
    return {
        "metrics": metrics.measure_all(after_p, coordinates),
        "before": metrics.measure_all(before_p, coordinates),
        "teachers": {name: metrics.measure_data_set(*own[name], coordinates) for name in tests},
    }


def _on_tests(
    model: _Model, names: list[str], federation: Federation, executor: Executor
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Data set -> (probabilities float32 [N, C], labels int64 [N])."""
    requests = [_predict("predictions", model, federation, federation.tokens[name, "test"]) for name in names]
    found = {}
    for name, request, artefact in zip(names, requests, executor(requests), strict=True):
        labels = executor.place.store.get(*request.tokens).tensors()["labels"]
        found[name] = (_probabilities(artefact.tensors()["logits"]), labels.numpy())
    return found


def _probabilities(logits: torch.Tensor) -> np.ndarray:
    return torch.softmax(logits.double(), dim=1).float().numpy()


def _predict(stage: Any, model: _Model, federation: Federation, tokens: Ref, output: Any = "logits") -> Predict:
    return Predict(stage, model.name, federation.networks[model.party], model.weights, tokens, output)


def _write_vectors(student: _Model, federation: Federation, executor: Executor, folder: Path) -> None:
    store: Store = executor.place.store
    tokens = balanced_subset(federation.tokens[federation.server, "test"], VECTORS_PER_LABEL, federation.seed, store)
    artefact = executor([_predict("features", student, federation, tokens, "features")])[0]
    arrays = {"vectors": artefact.tensors()["features"], "labels": store.get(*tokens).tensors()["labels"]}
    write_atomic(folder / "vectors.safetensors", save_bytes(arrays))


def _write_probe(
    settings: Settings,
    task: TextTask,
    federation: Federation,
    state: dict[str, Any],
    executor: Executor,
    folder: Path,
) -> None:
    """Paired sentences that differ in one word (App. D.2), through the student, the model before, and every teacher."""
    rows = [
        (probe, template, list(words))
        for probe, spec in settings.task.probe.items()
        for template in spec["templates"]
        for words in spec["words"]
    ]
    if not rows:
        return
    texts = [template.replace("{}", word) for _, template, words in rows for word in words]
    data_root = executor.place.data_root
    tokenizer = make_tokenizer(load_vocabulary(settings.model, task, data_root), settings.task.max_length)
    key = digest({"probe": texts, "words": digest(tokenizer.get_vocab()), "max_length": settings.task.max_length})
    examples = Examples(texts, None, np.full(len(texts), -1, dtype=np.int64))
    tokens = save_texts(examples, tokenizer, key, executor.place.store)
    models = [
        _Model("student", federation.server, _ref(state["student"])),
        _Model("before", federation.server, _ref(state["before"])),
        *(_Model(party, party, _ref(state[f"weights/{party}"])) for party in federation.locals),
    ]
    artefacts = executor([_predict("probe", model, federation, tokens) for model in models])
    found = []
    for model, artefact in zip(models, artefacts, strict=True):
        probabilities = iter(_probabilities(artefact.tensors()["logits"]).tolist())
        for probe, template, words in rows:
            values = [next(probabilities) for _ in words]
            found.append(
                {"probe": probe, "template": template, "words": words, "model": model.name, "probabilities": values}
            )
    write_json(folder / "probe.json", found)


def _ref(name: str) -> Ref:
    stage, key = name.split("/")
    return stage, key
