"""Texts for clients that train in rounds: all labelled ones in one pool, encoded once and kept."""

from __future__ import annotations

import dataclasses

from knot_runner.data.pools import TextPool, pool_texts
from knot_runner.engine.examples import TextData
from knot_runner.models.bert import party_model
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.features.texts import feature_files, feature_notes
from knot_runner.pipelines.federations.texts import (
    encoded_pool,
    load_vocabulary,
    model_files,
    random_pool,
    weights_notes,
)

#: share of texts above which it is said that they fill ``task.max_length``: longer ones are cut there
MANY_CUT = 0.05


def read_texts(context: RunContext) -> tuple[TextPool, Network, TextData, TextData]:
    """The labelled texts of a task in one pool, its model, and the texts as engines hold them."""
    settings, root = context.settings, context.data_root
    task = context.services.texts(settings.task, root)
    vocabulary = load_vocabulary(settings.model, task, root)
    pool = pool_texts(task, getattr(settings.partition, "by", "user"))
    clustering = context.hp.clustering
    compared_by = None if clustering is None or clustering.graph == "none" else clustering.otdd.features
    notes = [*pool.notes, *weights_notes(settings.model, task, root), *feature_notes(compared_by, pool)]
    files = [*pool.files, *model_files(settings.model, root), *feature_files(context, compared_by)]
    pool = dataclasses.replace(pool, notes=notes, files=files)
    data = [encoded_pool(part.examples, vocabulary, settings, context.store) for part in (pool.train, pool.test)]
    notes += _cut_note(data[0], settings.task.max_length)
    return pool, Network(party_model(settings.model, ""), len(vocabulary), len(pool.classes)), *data


def server_texts(context: RunContext, pool: TextPool, biased: bool) -> tuple[TextData | None, TextData | None]:
    """The task's own transfer set, where it has one, and the random texts that show probability biases, if ``biased``;
    both unlabelled."""
    settings = context.settings
    vocabulary = load_vocabulary(settings.model, pool.whole, context.data_root)
    own = next((data for data in pool.whole.datasets.values() if data.role == "transfer"), None)
    transfer = None
    if own is not None:
        transfer = encoded_pool(own.splits["train"].unlabelled(), vocabulary, settings, context.store)
    random = random_pool(vocabulary, settings, context.hp.distil.bias, context.store) if biased else None
    return transfer, random


def _cut_note(train: TextData, longest: int) -> list[str]:
    """A line where many texts are as long as the model takes, since what they have beyond that is not seen."""
    full = float((train.texts.offsets.diff() >= longest).double().mean())
    if full <= MANY_CUT:
        return []
    return [f"task.max_length={longest}: {full:.0%} of the training texts fill it; what is longer is cut"]
