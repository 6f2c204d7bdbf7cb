"""The transfer set: the examples with which a server distills. Their labels are not used.

The transfer set is a separate data set, or it is held out before the partition, so that no client has its examples.
This module also encodes the labeled texts of a task.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.image_tasks import UNLABELED, ImageTaskSettings
from knot_runner.config.settings.methods.federated import FederatedSettings, server_distillation
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.data.images import Images, ImageTask
from knot_runner.data.images.held_out import with_transfer
from knot_runner.data.pools import TextPool
from knot_runner.data.tasks import Examples
from knot_runner.engine.examples import ClientData, ImageData, TextData, joined_data
from knot_runner.methods.federation import ServerExamples
from knot_runner.methods.losses import check_loss_and_weighting
from knot_runner.methods.party import label_points
from knot_runner.methods.weighting import needs_bias, random_images
from knot_runner.models.network import Network
from knot_runner.models.tokens import vocabulary_size
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.pipelines.features.texts import read_pool
from knot_runner.pipelines.federations.texts import TextStore, check_weights, model_files
from knot_runner.util.errors import UserError


def with_other_set(context: RunContext, task: ImageTask) -> ImageTask:
    """Return ``task`` with a transfer set: the image data set that the setting ``transfer`` selects.

    If the method does not distill, return ``task`` with a note that the data set is not used.

    Raises:
        UserError: The images cannot be used.
    """
    config = context.method
    transfer = as_kind(context.settings.transfer, ImageTaskSettings)
    if isinstance(config, FederatedSettings) and server_distillation(config) is None:
        note = f"transfer={transfer.name}: method={config.name} does not distill, so the transfer set is not used"
        return dataclasses.replace(task, notes=[*task.notes, note])
    return with_transfer(task, context.services.unlabeled(transfer, context.data_root))


def server_examples(
    context: RunContext,
    task: ImageTask | TextPool,
    labels: Labels,
    data: ClientData,
    test: ClientData,
    held_out: np.ndarray,
) -> tuple[ClientData, ServerExamples]:
    """Add the server's unlabeled examples to the training examples ``data``.

    If the transfer set is another data set, its examples are appended to ``data``. Otherwise, the transfer set consists
    of the rows ``held_out`` of ``data``. The labels of the transfer set are removed. If the method measures the
    clients' probability biases, random images or texts are also appended for this measurement. The server's model is
    evaluated on all examples of ``test``.

    Returns:
        All training examples, and the row numbers of the server's examples.

    Raises:
        UserError: The transfer set has no examples for distillation.
    """
    spec = context.method.server_distillation
    check_loss_and_weighting(spec.loss, spec.weighting, label_points(labels), "method.server_distillation")
    biased = needs_bias(spec.weighting)
    own: ClientData | None = None
    random: ClientData | None = None
    if isinstance(task, TextPool):
        texts = TextStore.of(context, task.whole)
        for dataset in task.whole.datasets.values():
            if dataset.role == "transfer":
                own = texts.read(texts.put(as_kind(dataset.splits["train"], Examples).unlabeled()))
        if biased:
            random = texts.read(texts.put_random(spec.bias))
    else:
        public = task.transfer
        if public is not None:
            own = _resident(data, public)
        else:
            public = task.train.take(held_out)
        if biased:
            random = _resident(data, random_images(public, spec.bias, context.settings.seed))
    transfer = torch.from_numpy(held_out)
    if own is not None:
        transfer = len(data.labels) + torch.arange(len(own.labels))
    if spec.valid and int(spec.valid * len(transfer)) == 0:
        problem = f"a share of {spec.valid:g} gives no examples, because there are {len(transfer)} transfer examples"
        raise UserError(problem, "method.server_distillation.valid", hint="Use 0, or a larger share")
    everything = joined_data([part for part in (data, own, random) if part is not None])
    total = len(everything.labels)
    everything.labels[transfer] = UNLABELED
    first = total if random is None else total - len(random.labels)
    return everything, ServerExamples(torch.arange(len(test.labels)), transfer, torch.arange(first, total))


def _resident(data: ClientData, images: Images) -> ImageData:
    """Return ``images`` in the format of the engines, normalized like ``data``."""
    return dataclasses.replace(
        as_kind(data, ImageData), pixels=torch.from_numpy(images.pixels), labels=torch.from_numpy(images.labels)
    )


#: A note reports truncated texts if more than this fraction of the texts reaches ``task.max_length``.
MANY_CUT = 0.05


def read_texts(context: RunContext) -> tuple[TextPool, Network, TextData, TextData]:
    """Return the pool of a task's labeled texts, the network, and the encoded training and test texts."""
    settings = context.settings
    clustering = context.method.clustering
    compared_by = None
    if clustering is not None and clustering.graph != "none":
        compared_by = clustering.otdd.features
    pool = read_pool(context, compared_by)
    texts = TextStore.of(context, pool.whole)
    model = as_kind(settings.model, ModelSettings)
    network = Network(model, vocabulary_size(texts.tokenizer), len(pool.classes))
    train, test = (texts.read(texts.put(part)) for part in (pool.train, pool.test))
    notes = [*pool.notes, *check_weights(network, context.data_root)]
    longest = settings.task.max_length
    full = float((train.texts.offsets.diff() >= longest).double().mean())
    if full > MANY_CUT:
        notes.append(
            f"task.max_length={longest}: {full:.0%} of the training texts reach it; longer texts are truncated"
        )
    files = [*pool.files, *model_files(context)]
    return dataclasses.replace(pool, notes=notes, files=files), network, train, test
