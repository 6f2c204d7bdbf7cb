"""Images or texts of clients, for runs that train no model: reading them, and the rows of each client."""

from __future__ import annotations

import dataclasses

from knot_runner.config.settings import CoresetKnnSettings, CoresetSettings, Natural, OtddSettings
from knot_runner.data.images import ImageTask, Partition, make_partition
from knot_runner.data.pools import TextPool, pool_texts
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.runs.kept_images import read_images

#: What has an ``encoder`` of images and ``features`` of texts.
Described = OtddSettings | CoresetSettings | CoresetKnnSettings
#: Parties of texts that no partition deals out: the data sets that are there.
DATA_SETS = Natural("natural", by="user", least=1, clients=None, without_users="stop", alpha=1.0, count=1)


def read_examples(context: RunContext, described: Described) -> ImageTask | TextPool:
    """Returns the task's images, or its labelled texts with notes on their features. Raises :class:`UserError`."""
    settings, root = context.settings, context.data_root
    if settings.on_images:
        return read_images(context)
    from knot_runner.pipelines.features.texts import feature_files, feature_notes  # tokenizers, which images do without

    pool = pool_texts(context.services.texts(settings.task, root), getattr(settings.partition, "by", "user"))
    notes = [*pool.notes, *feature_notes(described.features, pool)]
    return dataclasses.replace(pool, notes=notes, files=[*pool.files, *feature_files(context, described.features)])


def client_partition(context: RunContext, task: ImageTask | TextPool) -> Partition:
    """Returns the run's partition of ``task``; without one, texts are split by data set. Raises :class:`UserError`."""
    settings = context.settings
    return make_partition(settings.partition or DATA_SETS, task, settings.seed)
