"""Probes of trained models of texts: sentences that differ in one word (KNOT App. D.2)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from knot_runner.config.strict import digest
from knot_runner.data.tasks import Examples, PartyTask
from knot_runner.engine.execute import Executor
from knot_runner.methods.federation import Federation
from knot_runner.models.tokens import make_tokenizer
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.federations.texts import load_vocabulary, save_texts
from knot_runner.pipelines.parties.trained_model import probabilities_of, trained_models
from knot_runner.util.files import write_json


def write_probe(
    context: RunContext, task: PartyTask, federation: Federation, state: dict[str, Any], executor: Executor
) -> None:
    """Paired sentences that differ in one word (App. D.2), through the student, the model before where there is one,
    and every teacher."""
    settings = context.settings
    rows = []
    for probe, spec in settings.task.probe.items():
        for template, words in itertools.product(spec["templates"], spec["words"]):
            rows.append((probe, template, list(words)))
    if not rows:
        return
    texts = [template.replace("{}", word) for _, template, words in rows for word in words]
    tokenizer = make_tokenizer(load_vocabulary(settings.model, task, context.data_root), settings.task.max_length)
    key = digest({"probe": texts, "words": digest(tokenizer.get_vocab()), "max_length": settings.task.max_length})
    examples = Examples(texts, None, np.full(len(texts), -1, dtype=np.int64))
    tokens = save_texts(examples, tokenizer, key, executor.place.store)
    student, before, teachers = trained_models(federation, state)
    models = [student, *([before] if before else []), *(teachers[party.name] for party in federation.clients)]
    artefacts = executor([model.predict("probe", tokens) for model in models])
    found = []
    for model, artefact in zip(models, artefacts, strict=True):
        probabilities = iter(probabilities_of(artefact).tolist())
        for probe, template, words in rows:
            values = [next(probabilities) for _ in words]
            found.append(
                {"probe": probe, "template": template, "words": words, "model": model.name, "probabilities": values}
            )
    write_json(context.folder / "probe.json", found)
