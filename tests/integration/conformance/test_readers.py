"""Every reader, of the package and of plug-ins, on small files."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.image_tasks import IMAGE_READERS, ImageTaskSettings
from knot_runner.config.settings.text_tasks import TEXT_READERS
from knot_runner.util.errors import UserError
from tests import image_files
from tests.data_checks import check_reader
from tests.gld23k import PHOTOGRAPHS, TEST, TRAIN, write_gld23k
from tests.image_files import image_settings
from tests.tiny import EXAMPLES

GRAY = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
COLOR = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 3
FEW = {"shape": [1, 4, 4], "classes": ["ape", "cow", "wolf"]}
#: layout -> what writes its files below a folder and returns the settings of a task of them and the labels to be read
IMAGES: dict[str, Callable[[Path], tuple[ImageTaskSettings, list[int]]]] = {}


def layout(*parameters: Any) -> Callable[..., Any]:
    """Add a function of (folder, parameter) to the layouts of its name, once for each parameter."""

    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        for one in parameters or (None,):
            IMAGES[f"{build.__name__} {one or ''}".strip()] = lambda root, one=one: build(root, one)
        return build

    return add


@layout("plain", "gzip")
def idx(root: Path, kind: str) -> tuple[ImageTaskSettings, list[int]]:
    names = [f"{name}{'.gz' if kind == 'gzip' else ''}" for name in ("images", "labels", "tested", "wanted")]
    for name, array in zip(names, (GRAY, LABELS, GRAY[:2], LABELS[:2]), strict=True):
        image_files.idx(root / name, array)
    return image_settings(local={"train": names[:2], "test": names[2:]}, **FEW), [*LABELS, *LABELS[:2]]


@layout("zip.train", "zip.train.gz")
def usps(root: Path, name: str) -> tuple[ImageTaskSettings, list[int]]:
    image_files.usps(root / name, LABELS.tolist(), np.linspace(-1, 1, 12 * 256).reshape(12, 256))
    return image_settings("usps", local={"train": [name], "test": []}), [*LABELS]


@layout("binary", "python", "tar")
def cifar(root: Path, kind: str) -> tuple[ImageTaskSettings, list[int]]:
    data = image_files.binary(COLOR, LABELS[:2])
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    folder, ending = ("cifar-10-batches-py", "") if kind == "python" else ("cifar-10-batches-bin", ".bin")
    if kind == "python":
        data = image_files.python2(COLOR.reshape(2, -1), LABELS[:2].tolist())
    files = {f"{folder}/{name}{ending}": data for name in names}
    entry = folder if kind != "tar" else image_files.tar(root / "c.tar.gz", files).name
    if kind != "tar":
        image_files.tree(root, files)
    local = {"format": "cifar", "train": [entry], "test": [entry]}
    return image_settings("cifar10", local=local), [*LABELS[:2]] * 6


@layout()
def leaf(root: Path, _: None) -> tuple[ImageTaskSettings, list[int]]:
    writer = (GRAY[:3].reshape(3, 16) / 255).tolist(), [2, 0, 1]
    image_files.leaf(root / "train" / "a_train.json", {"w": writer})
    image_files.leaf(root / "test" / "a_test.json", {"w": writer})
    return image_settings(local={"format": "leaf", "train": ["train"], "test": ["test"]}, **FEW), [2, 0, 1] * 2


@layout("train", "set.zip/train")
def folders(root: Path, entry: str) -> tuple[ImageTaskSettings, list[int]]:
    files = {f"train/{name}/a.png": image_files.png(GRAY[i]) for i, name in enumerate(FEW["classes"])}
    if entry == "train":
        image_files.tree(root, files | {"train/ape/.hidden": b"x"})
    else:
        image_files.zipped(root / "set.zip", files)
    return image_settings(local={"format": "folders", "train": [entry], "test": []}, **FEW), [0, 1, 2]


@layout()
def files(root: Path, _: None) -> tuple[ImageTaskSettings, list[int]]:
    image_files.tree(root, {f"pictures/{name}.png": image_files.png(GRAY[i]) for i, name in enumerate("ab")})
    return image_settings(local={"format": "files", "train": ["pictures"], "test": []}, **FEW), [0, 0]


@layout()
def gld23k(root: Path, _: None) -> tuple[ImageTaskSettings, list[int]]:
    write_gld23k(root)
    labels = [label for own in PHOTOGRAPHS.values() for _, label in own]
    return image_settings("gld23k", shape=[3, 4, 4], local={"train": [TRAIN], "test": [TEST]}), [*labels, 3, 1, 0]


@layout()
def npz(root: Path, _: None) -> tuple[ImageTaskSettings, list[int]]:
    np.savez(root / "a.npz", pixels=GRAY[:, None], labels=LABELS)
    return image_settings(local={"format": "npz", "train": ["a.npz"], "test": []}, **FEW), [*LABELS]


GOOD, BAD = {"text": "so, good", "label": "good"}, {"text": "bad", "label": "bad"}
TALK = [{"text": "Oh ! ", "label": "6", "dialogue": "1"}, {"text": "Bye ", "label": "4", "dialogue": "2"}]
#: format, file -> its content, and the columns that are read
TEXTS = {
    ("csv", "x.csv"): (b'text,label\n"so, good",good\nbad,bad\n', [GOOD, BAD]),
    ("csv", "x.csv.gz"): (gzip.compress(b'text,label\n"so, good",good\nbad,bad\n', mtime=0), [GOOD, BAD]),
    ("jsonl", "x.jsonl"): (b'{"text": "so, good", "label": "good"}\n{"text": "bad", "label": "bad"}\n', [GOOD, BAD]),
    ("dailydialog", "dialogues_x.txt"): (b"Oh ! __eou__\nBye __eou__ \n", TALK),
    ("fasttext", "x.txt"): (b"__label__good so, good\n__label__bad bad\n", [GOOD, BAD]),
}


@pytest.fixture
def plugins() -> None:
    load_plugins([str(EXAMPLES / "own_reader.py"), str(EXAMPLES / "own_text_reader.py")])


@pytest.mark.parametrize("name", IMAGES)
def test_image_readers_conform(plugins: None, tmp_path: Path, name: str) -> None:
    settings, labels = IMAGES[name](tmp_path)
    check_reader(settings.local.format, tmp_path, settings, labels)


@pytest.mark.parametrize(("kind", "name"), TEXTS)
def test_text_readers_conform(plugins: None, tmp_path: Path, kind: str, name: str) -> None:
    content, records = TEXTS[kind, name]
    (tmp_path / name).write_bytes(content)
    if kind == "dailydialog":
        (tmp_path / "dialogues_emotion_x.txt").write_text("6\n4\n")
    check_reader(kind, tmp_path, name, records)


def test_reader_checks_cover_every_reader() -> None:
    assert {name.split()[0] for name in IMAGES} == {*IMAGE_READERS, "npz"}
    assert {kind for kind, _ in TEXTS} == {*TEXT_READERS, "fasttext"}


Records = Iterator[tuple[int, dict[str, str]]]


def lines(path: Path) -> Records:
    text = path.read_text(errors="replace") if path.exists() else "one"
    return enumerate(({"text": line} for line in text.splitlines()), 1)


def at_random(path: Path) -> Records:
    return ((random.randrange(10**9), columns) for _, columns in lines(path))


def writing(path: Path) -> Records:
    path.with_suffix(".cache").touch()
    return lines(path)


def leaving(path: Path) -> Records:
    Path(__file__).read_bytes()
    return lines(path)


def of_files(path: Path) -> Records:
    if not path.exists():
        raise UserError("file not found", path)
    return lines(path)


def of_whole_lines(path: Path) -> Records:
    of_files(path)
    return (record for record, line in zip(lines(path), path.open("rb"), strict=True) if line.endswith(b"\n"))


@pytest.mark.parametrize(("reader", "problem"), [
    (lambda path: list(lines(path))[:1], "not what was expected"),
    (at_random, "a second reading returns different examples"), (leaving, "files outside the folder were opened"),
    (writing, "a file of the folder was written"), (lines, "no UserError names x.txt, which is absent"),
    (of_files, "no UserError names x.txt, cut to"), (of_whole_lines, "no UserError names x.txt, which was altered"),
])  # fmt: skip
def test_check_reader_says_what_a_reader_breaks(tmp_path, reader, problem):
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    with pytest.raises(AssertionError, match=problem):
        check_reader(reader, tmp_path, "x.txt", [{"text": "one"}, {"text": "two"}])
