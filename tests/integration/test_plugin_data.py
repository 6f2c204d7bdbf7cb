"""A reader and a partition from outside the package: one Python file each, no change anywhere."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.data.images.load import IMAGE_READERS
from knot_runner.data.images.partition import PARTITIONS
from knot_runner.data.readers import TEXT_READERS
from tests.golden.messages import refuses
from tests.tiny import TINY, TINY_IMAGES, TINY_TEXTS, replaced

PLUGINS = Path(__file__).parents[1] / "plugins"
#: without what only partition=natural has
SMALL = [override for override in TINY_IMAGES if not override.startswith("partition.")]
BLOCKS = [f"--config-dir={PLUGINS / 'conf'}", *SMALL, f"plugins=['{PLUGINS / 'own_partition.py'}']", "partition=blocks"]
NPZ = [*SMALL, "partition=iid", "partition.clients=5", "task.source=local", "task.local.format=npz"]


@pytest.fixture(autouse=True)
def forgotten():
    """What a plug-in adds is gone with its test, so that the next one loads it anew."""
    tables = (PARTITION_SETTINGS, IMAGE_READERS, TEXT_READERS, PARTITIONS)
    before = [dict(table.data) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.data.clear()
        table.data.update(entries)
    for name in ("own_reader", "own_text_reader", "own_partition"):
        sys.modules.pop(name, None)


def write_npz(path, count, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    pixels = rng.integers(0, 50, (count, 1, 8, 8)) + 50 * labels[:, None, None, None]
    np.savez(path, pixels=pixels.astype(np.uint8), labels=labels)


def test_a_reader_of_ones_own(tmp_path, capsys):
    write_npz(tmp_path / "a.npz", 60, 0)
    write_npz(tmp_path / "b.npz", 20, 1)
    files = ["task.local.train=[a.npz]", "task.local.test=[b.npz]", f"paths.data={tmp_path}", f"paths.out={tmp_path}"]
    run = [*NPZ, *files]
    assert main(run) == 2
    assert "task.local.format: 'npz' is not one of leaf, cifar, idx, usps, folders, gld23k" in capsys.readouterr().err
    plugin = f"plugins=['{PLUGINS / 'own_reader.py'}']"
    assert main([*run, plugin]) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("femnist/*/*/result.json")
    result = json.loads(path.read_text())
    assert [file["path"] for file in result["files"]] == ["a.npz", "b.npz"]  # so that other data are noticed
    capsys.readouterr()
    assert main([*run, plugin, "task.local.format=npy"]) == 2
    assert "task.local.format: no reader 'npy' (did you mean 'npz'?)" in capsys.readouterr().err
    write_npz(tmp_path / "b.npz", 20, 2)
    assert main([*run, plugin, "task.shape=[1,9,9]"]) == 2
    assert "a.npz: its images are 1x8x8, but task.shape is 1x9x9" in capsys.readouterr().err


def test_a_partition_of_ones_own(tmp_path, capsys):
    assert main([*BLOCKS, f"paths.out={tmp_path}"]) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("femnist/*/*/partition.json")
    sizes = np.array([sum(counts) for counts in json.loads(path.read_text())["train"]])
    assert len(sizes) == 5 and sizes[0] > 1.9 * sizes[1] and np.ptp(sizes[1:]) <= 1
    assert main([*BLOCKS, "partition.extra=many", f"paths.out={tmp_path}"]) == 2
    assert "partition.extra: expected a number, got 'many'" in capsys.readouterr().err
    assert main([*BLOCKS, "partition.clients=1000", f"paths.out={tmp_path}"]) == 2
    assert "partition.clients: 1000 are more than the 300 training examples" in capsys.readouterr().err


def test_misspelt_formats_are_named_before_anything_is_read():
    for overrides in (
        [*TINY, "task.datasets.Cell.local.format=cvs"],
        ["task=mnist", "partition=iid", "task.local.format=3"],
        ["task=image_sets", "task.sets.mnist.local.format=ids"],
    ):
        with refuses():
            compose_all(overrides)


def test_a_reader_of_texts_of_ones_own(tmp_path, capsys):
    lines = [f"__label__{label} it went {word} in week {i}" for i in range(40) for label, word in LABELS.items()]
    for name in ("shop", "street", "post"):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{line} at the {name}" for line in lines) + "\n")
    plugin = f"plugins=['{PLUGINS / 'own_text_reader.py'}']"
    small = replaced(TINY_TEXTS, "task=mood", "method=fedavg", "training.rounds=1")
    small = [word for word in small if not word.startswith("task.limit")]
    run = [f"--config-dir={PLUGINS / 'conf'}", *small, f"paths.data={tmp_path}", f"paths.out={tmp_path / 'out'}"]
    assert main([*run, plugin]) == 0, capsys.readouterr().err
    (path,) = (tmp_path / "out").glob("mood/*/*/result.json")
    result = json.loads(path.read_text())
    assert sorted(file["path"] for file in result["files"]) == ["post.txt", "shop.txt", "street.txt"]
    assert result["labels"]["names"] == ["low", "high"] and result["datasets"]["test"] == 2 * 16
    (tmp_path / "shop.txt").write_text("high it went up\n")
    assert main([*run, plugin, "seed=1"]) == 2
    assert "shop.txt: line 1: begins without __label__NAME" in capsys.readouterr().err


LABELS = {"low": "down", "high": "up"}
