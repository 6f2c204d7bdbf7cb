"""The federation of a task. Each data set becomes a party, and the role of the data set determines the party's role.

A stage uses at most ``training.STAGE.max_examples`` of a party's training examples. For texts, see ``texts.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from knot_runner.config.settings.groups import CentralTraining, StageSettings, TrainingSettings
from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.distill import View
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.settings.text_tasks import Role
from knot_runner.config.strict import digest
from knot_runner.data.images.views import task_in_view, viewed_images
from knot_runner.data.tasks import Dataset, Examples, Images, PartyTask
from knot_runner.engine.federated.flat import check_network
from knot_runner.engine.requests import Ref
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.store import Store
from knot_runner.methods.party import PartyFederation, StoredParty
from knot_runner.methods.weighting import random_images
from knot_runner.models.network import Network
from knot_runner.pipelines.context import RunContext, as_kind


def stages_of(settings: Settings) -> dict[Role, StageSettings]:
    """Return a dict from the role of a data set to the settings of the stage that trains on the data set."""
    training = as_kind(settings.training, CentralTraining)
    server = training.pretrain if isinstance(training, TrainingSettings) else training.distill
    return {"local": training.local, "global": server, "transfer": training.distill}


def used_examples(dataset: Dataset, split: str, settings: Settings) -> Examples | Images:
    """Return the examples of ``split`` that the run uses, in the order of the split.

    The size of the split ``train`` has a limit: the setting ``max_examples`` of the stage that trains on ``dataset``.
    The run's seed determines which examples are used. A smaller limit selects a subset of the examples that a larger
    limit selects.
    """
    examples = dataset.splits[split]
    limit = stages_of(settings)[dataset.role].max_examples if split == "train" else None
    if limit is None or limit >= len(examples):
        return examples
    order = numpy_generator(settings.seed, "limit", dataset.name).permutation(len(examples))
    return examples.take(np.sort(order[:limit]))


def party_federation(
    settings: Settings,
    task: PartyTask,
    save: Callable[[Dataset, str, Any], Ref],
    network: Network,
    **more: Any,
) -> PartyFederation:
    """Store the examples of ``task`` with ``save``; return the federation.

    If there is no transfer set, the server's examples are used as transfer set.

    Args:
        settings: The run's settings.
        task: The data sets.
        save: Function of (data set, split, examples) that stores the examples and returns their reference.
        network: The network of every party.
        more: Further fields of the federation.
    """
    by_role: dict[str, list[StoredParty]] = {"local": [], "global": [], "transfer": []}
    for data in task.datasets.values():
        used = {split: used_examples(data, split, settings) for split in data.splits}
        refs = {split: save(data, split, examples) for split, examples in used.items()}
        by_role[data.role].append(StoredParty(data.name, refs, network, len(used["train"])))
    server = by_role["global"][0]
    return PartyFederation(
        clients=tuple(by_role["local"]),
        server=server,
        transfer=next(iter(by_role["transfer"]), server),
        labels=task.labels,
        training=as_kind(settings.training, CentralTraining),
        seed=settings.seed,
        **more,
    )


# ------------------------------------------------------------------------------------------------------------ images


def image_federation(context: RunContext, task: PartyTask, bias: BiasSettings | None) -> PartyFederation:
    """Put every split of every party into the store; return the federation.

    If ``bias`` is given, also store random images to measure the models' probability biases (KNOT section 5.2).

    Raises:
        UserError: The images do not fit the models.
    """
    settings = context.settings
    store = context.store
    spec = settings.task
    view: View = getattr(context.method, "view", "none")
    roles = {data.role: data for data in task.datasets.values()}
    random = None
    if bias is not None:
        transfer = roles.get("transfer", roles["global"]).splits["train"]
        random = save_images(random_images(as_kind(transfer, Images), bias, settings.seed), spec, store)
    network = Network(settings.model, tuple(spec.shape), len(task.labels.names))
    federation = party_federation(
        settings,
        task,
        lambda data, split, images: save_images(images, spec, store),
        network,
        random=random,
        augment=spec.augment,
        mean=spec.mean,
        std=spec.std,
    )
    if view != "none":
        student = federation.server
        data = roles["global"]
        shown = {}
        for split in data.splits:
            shown[split] = viewed_images(as_kind(used_examples(data, split, settings), Images), view)
        task_of_view = task_in_view(spec, shown["train"])
        student = dataclasses.replace(
            student,
            examples={split: save_images(images, task_of_view, store) for split, images in shown.items()},
            network=dataclasses.replace(network, inputs=tuple(task_of_view.shape)),
            originals={split: student.examples[split] for split in ("train", "test")},
        )
        federation = dataclasses.replace(federation, server=student, transfer=student)
    check_network(federation.server.network, settings.seed)
    return federation


def save_images(images: Images, task: ImageTaskSettings, store: Store) -> Ref:
    """Store ``images`` with the pixel mean and standard deviation of ``task``; return the reference to the artifact."""
    stats = {"mean": task.mean, "std": task.std}
    ref = ("images", digest({"images": images.digest, **stats}))
    tensors = {"pixels": torch.from_numpy(images.pixels), "labels": torch.from_numpy(images.labels)}
    tensors |= {name: torch.tensor(values, dtype=torch.float64) for name, values in stats.items()}
    store.find_or_put(*ref, lambda: (tensors, {"images": len(images)}))
    return ref
