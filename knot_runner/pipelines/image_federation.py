"""From a task's images to a federation: every party's images in the store, a network for each."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from knot_runner.config.settings import BiasSettings, ImageTaskSettings, Settings
from knot_runner.config.settings.distil import View
from knot_runner.config.strict import digest
from knot_runner.data.images.views import task_in_view, viewed_images
from knot_runner.data.tasks import UNLABELLED, Dataset, Images, PartyTask
from knot_runner.engine.requests import REQUEST_FORMAT, Ref
from knot_runner.engine.seeds import keyed
from knot_runner.engine.store import Store
from knot_runner.methods.federation import Federation
from knot_runner.models.images import Shape
from knot_runner.models.network import Network
from knot_runner.pipelines.setup import check_network
from knot_runner.pipelines.stage_limits import limit_notes, used_count, used_examples


def image_federation(settings: Settings, task: PartyTask, store: Store, bias: BiasSettings | None) -> Federation:
    """Put every split of every party into ``store`` and describe the parties.

    ``bias``: also make the random images that show probability biases. Raises :class:`UserError`.
    """
    by_role = {role: [d.name for d in task.datasets.values() if d.role == role] for role in ("local", "global")}
    roles = {data.role: data for data in task.datasets.values()}
    transfer = roles.get("transfer", roles["global"])
    examples = {
        (data.name, split): save_images(used_examples(data, split, settings), settings.task, store)
        for data in task.datasets.values()
        for split in data.splits
    }
    network = Network(settings.model, tuple(settings.task.shape), len(task.labels.names))
    networks, originals, student = dict.fromkeys(task.datasets, network), {}, roles["global"]
    view = settings.method.get("view", "none")
    if view != "none":
        originals = {split: examples[student.name, split] for split in ("train", "test")}
        seen, shape = _student_view(student, settings, view, store)
        examples |= seen
        networks[student.name] = dataclasses.replace(network, inputs=shape)
    check_network(networks[student.name], settings.seed)
    random = random_images(transfer.splits["train"], bias, settings.seed) if bias else None
    return Federation(
        locals=by_role["local"],
        server=by_role["global"][0],
        transfer=transfer.name,
        sizes={data.name: used_count(data, "train", settings) for data in task.datasets.values()},
        examples=examples,
        networks=networks,
        labels=task.labels,
        training=settings.training,
        seed=settings.seed,
        weights="scratch",
        random_examples=save_images(random, settings.task, store) if random else None,
        augment=settings.task.augment,
        originals=originals,
        mean=settings.task.mean,
        std=settings.task.std,
        notes=limit_notes(task, settings),
    )


def _student_view(
    student: Dataset, settings: Settings, view: View, store: Store
) -> tuple[dict[tuple[str, str], Ref], Shape]:
    """Every split of the student's images as ``view`` shows them, in the store, and the shape of an image."""
    shown = {split: viewed_images(used_examples(student, split, settings), view) for split in student.splits}
    own = task_in_view(settings.task, shown["train"])
    return {(student.name, split): save_images(images, own, store) for split, images in shown.items()}, tuple(own.shape)


def save_images(images: Images, task: ImageTaskSettings, store: Store) -> Ref:
    """``images`` in the store, with what normalises them."""
    stats = {"mean": task.mean, "std": task.std}
    ref = ("images", digest({"format": REQUEST_FORMAT, "images": images.digest, **stats}))
    with store.lock(*ref):
        if store.find(*ref) is None:
            tensors = {"pixels": torch.from_numpy(images.pixels), "labels": torch.from_numpy(images.labels)}
            tensors |= {name: torch.tensor(values, dtype=torch.float64) for name, values in stats.items()}
            store.put(*ref, tensors, {"images": len(images)})
    return ref


def random_images(public: Images, bias: BiasSettings, seed: int) -> Images:
    """``bias.images`` images without labels, of the shape of the transfer set's ``public`` ones: uniform noise, or
    these with their pixels in random places (all channels alike)."""
    draw, count = np.random.default_rng(keyed(seed, "random images", bias.noise)), bias.images
    shape, labels = public.pixels.shape[1:], np.full(bias.images, UNLABELLED, dtype=np.int64)
    if bias.noise == "uniform":
        whole = public.pixels.dtype == np.uint8
        pixels = draw.integers(256, size=(count, *shape), dtype=np.uint8) if whole else draw.random((count, *shape))
        return Images(pixels.astype(public.pixels.dtype, copy=False), labels)
    chosen = public.pixels[draw.integers(len(public), size=count)].reshape(count, shape[0], -1)
    places = draw.permuted(np.tile(np.arange(chosen.shape[2]), (count, 1)), axis=1)
    return Images(np.take_along_axis(chosen, places[:, None, :], axis=2).reshape(count, *shape), labels)
