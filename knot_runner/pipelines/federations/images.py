"""Conversion of a task's images to a federation, with every party's images in the store and a network for each party.

This module also creates random images, on which a model's outputs show its probability bias (KNOT section 5.2).
"""

from __future__ import annotations

import dataclasses

import torch

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.distill import View
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.strict import digest
from knot_runner.data.images.views import task_in_view, viewed_images
from knot_runner.data.tasks import Images, PartyTask
from knot_runner.engine.federated.flat import check_network
from knot_runner.engine.requests import Ref
from knot_runner.engine.store import Store
from knot_runner.methods.party import PartyFederation, StoredParty
from knot_runner.methods.weighting import random_images
from knot_runner.models.network import Network
from knot_runner.pipelines.context import as_kind
from knot_runner.pipelines.federations.parties import party_federation, used_examples


def image_federation(settings: Settings, task: PartyTask, store: Store, bias: BiasSettings | None) -> PartyFederation:
    """Put every split of every party into ``store``; return the federation.

    ``bias``: also create random images to measure probability biases.

    Raises:
        UserError: The images do not fit the models.
    """
    spec = settings.task
    roles = {data.role: data for data in task.datasets.values()}
    transfer = roles.get("transfer", roles["global"])
    examples = {
        (data.name, split): save_images(as_kind(used_examples(data, split, settings), Images), spec, store)
        for data in task.datasets.values()
        for split in data.splits
    }
    network = Network(settings.model, tuple(spec.shape), len(task.labels.names))
    random = random_images(as_kind(transfer.splits["train"], Images), bias, settings.seed) if bias else None
    federation = party_federation(
        settings,
        task,
        examples,
        dict.fromkeys(task.datasets, network),
        notes=[],
        random=save_images(random, spec, store) if random else None,
        augment=spec.augment,
        mean=spec.mean,
        std=spec.std,
    )
    view = getattr(settings.method, "view", "none")
    if view != "none":
        splits = roles["global"].splits
        used = {split: as_kind(used_examples(roles["global"], split, settings), Images) for split in splits}
        student = _with_view(federation.server, used, spec, view, store)
        federation = dataclasses.replace(federation, server=student, transfer=student)
    check_network(federation.server.network, settings.seed)
    return federation


def _with_view(
    student: StoredParty, splits: dict[str, Images], task: ImageTaskSettings, view: View, store: Store
) -> StoredParty:
    """Return ``student`` with each of its ``splits`` transformed by ``view``."""
    shown = {split: viewed_images(images, view) for split, images in splits.items()}
    task_of_view = task_in_view(task, shown["train"])
    return dataclasses.replace(
        student,
        examples={split: save_images(images, task_of_view, store) for split, images in shown.items()},
        network=dataclasses.replace(student.network, inputs=tuple(task_of_view.shape)),
        originals={split: student.examples[split] for split in ("train", "test")},
    )


def save_images(images: Images, task: ImageTaskSettings, store: Store) -> Ref:
    """Put ``images`` and their normalization statistics into the store."""
    stats = {"mean": task.mean, "std": task.std}
    ref = ("images", digest({"images": images.digest, **stats}))
    tensors = {"pixels": torch.from_numpy(images.pixels), "labels": torch.from_numpy(images.labels)}
    tensors |= {name: torch.tensor(values, dtype=torch.float64) for name, values in stats.items()}
    store.find_or_put(*ref, lambda: (tensors, {"images": len(images)}))
    return ref
