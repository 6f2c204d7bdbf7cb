"""The hub source of images, with the transport faked: ``datasets.load_dataset`` hands out sets made from lists."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from knot_runner.data.images import ImageTask, load_images
from tests.golden.messages import refuses

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
LABELS = [i % 5 for i in range(20)]
WRITERS = [f"f{i % 4}" for i in range(20)]


def rows(at: slice, **columns: Any) -> datasets.Dataset:
    images = [Image.fromarray(image) for image in PIXELS[at]]
    content = {"image": images, "character": LABELS[at], "writer_id": WRITERS[at], "unread": LABELS[at]} | columns
    kinds = {name: datasets.Image() for name in ("image",) if isinstance(content[name][0], Image.Image)}
    made = datasets.Dataset.from_dict(content)
    return made.cast(datasets.Features(made.features | kinds)) if kinds else made


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    made: list[tuple] = []

    def load_dataset(identity: str, config: str | None, *, revision: str, split: str) -> datasets.Dataset:
        made.append((identity, config, revision, split))
        return rows(slice(15, 20) if split == "test" else slice(0, 15))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return made


@pytest.fixture
def load(image_task):
    def read(**changes: Any) -> ImageTask:
        columns = {"image": "image", "label": "character", "user": "writer_id"}
        hub = {"id": "some/digits", "revision": "abc", "splits": {"train": "train", "test": "test"}} | columns
        return load_images(image_task("femnist", source="hub", hub=hub | changes), None)

    return read


def test_hub_images_have_labels_and_writers(load, calls) -> None:
    task = load(config="c")
    assert calls == [("some/digits", "c", "abc", split) for split in ("train", "test")]
    np.testing.assert_array_equal(task.train.pixels[:, 0], PIXELS[:15])
    np.testing.assert_array_equal(task.test.pixels[:, 0], PIXELS[15:])
    assert task.train.labels.tolist() == LABELS[:15]
    assert [task.user_names[u] for u in task.train.users] == WRITERS[:15]
    assert [task.user_names[u] for u in task.test.users] == WRITERS[15:]
    assert task.train.files is None and task.source == "hub"


def test_hub_writers_match_across_number_types(load, monkeypatch) -> None:
    """A split with a missing writer stores whole numbers as floats."""
    writers = {"train": [7.0, 8.0, None] * 5, "test": [7, 8, 9, 7, 8]}

    def load_dataset(*_: Any, split: str, **__: Any) -> datasets.Dataset:
        return rows(slice(15, 20) if split == "test" else slice(0, 15), writer_id=writers[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load()
    assert task.user_names == ["7", "8", "9"]
    assert task.train.users.tolist() == [0, 1, -1] * 5 and task.test.users.tolist() == [0, 1, 2, 0, 1]


def test_hub_split_is_cut_by_writer(load, calls) -> None:
    task = load(splits={"train": "train"})
    assert sorted(task.test.users.tolist()) == [0, 1, 2, 3] and len(task.train) == 11
    assert "femnist: no test set. 10% of each writer's images, 4, are held out" in task.notes


@pytest.mark.parametrize(("columns", "changes"), [
    ({"character": [0.5] * 15}, {}), ({"character": [0] * 14 + [62]}, {}), ({"character": [-1] * 15}, {}),
    ({"image": ["x"] * 15}, {}), ({"image": [{"bytes": b"x"}] * 15}, {}), ({}, {"label": "charakter"}),
    ({}, {"user": "writer"}), ({}, {"splits": {"test": "test"}}), ({}, {"splits": {"train": "a", "valid": "b"}}),
])  # fmt: skip
def test_hub_images_refuse_unfit_columns_and_settings(load, monkeypatch, columns: dict, changes: dict) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows(slice(0, 15), **columns))
    with refuses():
        load(**changes)
