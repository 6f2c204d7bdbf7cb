"""Runs with a custom reader and a custom partition, each in one Python file."""

import json

import numpy as np
import pytest

from knot_runner.composing.commands import compose_all
from tests.golden.messages import refuses
from tests.of_papers import of_papers
from tests.runs import run
from tests.tiny import EXAMPLES, TINY, TINY_IMAGES, TINY_TEXTS, replaced

#: without what only partition=natural has
SMALL = [override for override in TINY_IMAGES if not override.startswith("partition.")]
CONF = f"--config-dir={EXAMPLES / 'conf'}"
BLOCKS = [CONF, *SMALL, f"plugins=['{EXAMPLES / 'own_partition.py'}']", "partition=blocks"]
NPZ = [*SMALL, "partition=iid", "partition.num_clients=5", "task.source=local", "task.local.format=npz"]
LABELS = {"low": "down", "high": "up"}


def write_npz(path, count, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    pixels = rng.integers(0, 50, (count, 1, 8, 8)) + 50 * labels[:, None, None, None]
    np.savez(path, pixels=pixels.astype(np.uint8), labels=labels)


def test_run_reads_images_by_a_plug_in(tmp_path):
    write_npz(tmp_path / "a.npz", 60, 0)
    write_npz(tmp_path / "b.npz", 20, 1)
    words = [*NPZ, "task.local.train=[a.npz]", "task.local.test=[b.npz]", f"paths.data_dir={tmp_path}"]
    plugin = f"plugins=['{EXAMPLES / 'own_reader.py'}']"
    with refuses():
        run(tmp_path, *words)
    result = run(tmp_path, *words, plugin).result
    assert [file["path"] for file in result["files"]] == ["a.npz", "b.npz"]  # so that other data are noticed
    for wrong in ("task.local.format=npy", "task.shape=[1,9,9]"):
        with refuses():
            run(tmp_path, *replaced([*words, plugin], wrong))


def test_run_divides_images_by_a_plug_in(tmp_path):
    counts = json.loads((run(tmp_path, *BLOCKS).folder / "partition.json").read_text())["train"]
    sizes = np.sum(counts, axis=1)
    assert len(sizes) == 5 and sizes[0] > 1.9 * sizes[1] and np.ptp(sizes[1:]) <= 1
    for wrong in ("partition.extra=many", "partition.num_clients=1000"):
        with refuses():
            run(tmp_path, *BLOCKS, wrong)


@pytest.mark.parametrize("words", of_papers([
    ([*TINY, "task.datasets.Cell.local.format=cvs"],), (["task=mnist", "partition=iid", "task.local.format=3"],),
    (["task=image_sets", "task.sets.mnist.local.format=ids"],),
]), ids=["texts", "images", "sets"])  # fmt: skip
def test_compose_refuses_misspelt_formats(words):
    with refuses():
        compose_all(words)


def test_run_reads_texts_by_a_plug_in(tmp_path):
    lines = [f"__label__{label} it went {word} in week {i}" for i in range(40) for label, word in LABELS.items()]
    for name in ("shop", "street", "post"):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{line} at the {name}" for line in lines) + "\n")
    small = replaced(TINY_TEXTS, "task=mood", "method=fedavg", "training.rounds=1")
    words = [CONF, *(word for word in small if not word.startswith("task.max_examples")), f"paths.data_dir={tmp_path}"]
    words.append(f"plugins=['{EXAMPLES / 'own_text_reader.py'}']")
    result = run(tmp_path / "out", *words).result
    assert sorted(file["path"] for file in result["files"]) == ["post.txt", "shop.txt", "street.txt"]
    assert result["labels"]["names"] == ["low", "high"] and result["datasets"]["test"] == 2 * 16
    (tmp_path / "shop.txt").write_text("high it went up\n")
    with refuses():
        run(tmp_path / "out", *words, "seed=1")
