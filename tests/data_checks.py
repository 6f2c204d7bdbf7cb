"""Checks for built-in and custom readers and partitions."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from knot_runner.config.settings.image_tasks import IMAGE_READERS, ImageTaskSettings
from knot_runner.config.settings.text_tasks import TEXT_READERS
from knot_runner.config.strict import build
from knot_runner.data.checksums import CHECKSUMS, open_folder
from knot_runner.data.images.checks import images_problem
from knot_runner.data.images.partition import PARTITIONS, make_partition
from knot_runner.data.tasks import Images, ImageTask
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError

_opened: set[Path] | None = None


def check_reader(reader: Any, folder: Path, source: ImageTaskSettings | str, expected: Sequence[object]) -> None:
    """Check a reader of images or of texts on small, valid files, of which ``expected`` are the examples. ``source``:
    the settings of an image task, or the path of a text file relative to ``folder``."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(shutil.copytree(folder, Path(temporary).resolve() / "data"))
        before = _contents(root)
        read = partial(_read, reader, root, source)
        whole, _ = read()
        assert [example for example, _ in whole] == list(expected), f"not what was expected: {whole!r:.300}"
        with opened_files() as opened:
            again, recorded = read()
        assert again == whole, "a second reading returns different examples"
        assert _contents(root) == before, "a file of the folder was written"
        assert opened <= before.keys(), f"files outside the folder were opened: {opened - before.keys()}"
        assert not recorded or opened <= recorded, f"the record lacks some of {opened}"
        of_texts = isinstance(source, str)
        entries = [source]
        if not of_texts:
            entries = [*source.local.train, *source.local.test]
        for entry in entries:
            top = root / Path(entry).parts[0]
            hidden = top.rename(root.with_name("hidden"))
            assert top.name in _outcome(read)[1], f"no UserError names {entry}, which is absent"
            hidden.rename(top)
        for path in sorted(opened):
            content = path.read_bytes()
            checksums = root / CHECKSUMS
            for stop in np.linspace(0, len(content) - 1, 12, dtype=int):
                path.write_bytes(content[:stop])
                result, problem = _outcome(read)
                named = path.name in problem or (result and all(example in whole for example in result[0]))
                assert named, f"no UserError names {path.name}, cut to {stop} bytes"
            path.write_bytes(content + b"\xff" * of_texts)  # not UTF-8
            checksums.write_text(f"{'0' * 64}  {path.relative_to(root).as_posix()}\n")
            assert path.name in _outcome(read)[1], f"no UserError names {path.name}, which was altered"
            checksums.unlink()
            path.write_bytes(content)


def _read(reader: object, root: Path, source: ImageTaskSettings | str) -> tuple[list[tuple[object, object]], set[Path]]:
    if isinstance(source, str):
        return [(columns, number) for number, columns in TEXT_READERS.get(reader, reader)(root / source)], set()
    folder = open_folder(root)
    examples = []
    parts = IMAGE_READERS.get(reader, reader)(folder, source)
    for images in (parts.train, parts.test):
        if images is None:
            continue
        problem = images_problem(images, source)
        assert not problem, problem
        examples += zip(images.labels.tolist(), [pixels.tobytes() for pixels in images.pixels], strict=True)
    return examples, recorded_files(folder.files, root)


def recorded_files(files: Sequence[Opened], root: Path) -> set[Path]:
    """Return the paths of the existing files that ``files`` describe, including all files in a described folder."""
    paths = set()
    for file in files:
        path = root / file.path
        if file.pattern:
            paths.update(path.glob(file.pattern))
        elif file.sha256 is not None:
            paths.add(path)
    return paths


def check_partition(
    partition: object, settings: Any, owners: Sequence[int] = (1,), seeded: bool = True, labels: bool = True
) -> None:
    """Check a partition of images over clients, on a small task: 120 training images, ten classes, eight writers.
    ``owners``: least and largest number of clients of an example; ``seeded``, ``labels``: whether it depends on
    these."""

    def dealt(labels: np.ndarray, seed: int = 0, **changes: object) -> list[list[int]]:
        images = Images(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, np.arange(len(labels)) % 8)
        task = ImageTask("checked", [*"abcdefghij"], None, images, images, [0.0], [1.0], "local", [*"abcdefghij"])
        with mock.patch.dict(PARTITIONS.data, {settings.kind: PARTITIONS.get(partition, partition)}):
            options = build(type(settings), asdict(settings) | changes, "partition")
            drawn = make_partition(options, task, seed)
        assert len(set(drawn.names)) == len(drawn.train) == len(drawn.test), "names, train and test differ in length"
        for part in (drawn.train, drawn.test):
            for rows in part:
                assert rows.dtype == np.int64 and (np.diff(rows) > 0).all(), "rows are not ascending"
            counts = np.bincount(np.concatenate(part), minlength=len(labels))
            assert set(counts) <= set(owners), f"examples are at {set(counts.tolist())} clients, not at {owners}"
        return [rows.tolist() for rows in drawn.train]

    plain = dealt(classes := np.arange(120) % 10)
    assert dealt(classes) == plain, "the same seed gives a different partition"
    assert not seeded or dealt(classes, seed=1) != plain, "a different seed gives the same partition"
    assert labels or dealt(classes[::-1] // 2) == plain, "different labels give a different partition"
    _, problem = _outcome(lambda: dealt(0 * classes))
    assert not problem or problem.startswith("partition."), f"one class: no setting is named in {problem!r}"
    if not hasattr(settings, "num_clients"):
        return
    for clients in (1, 121):
        drawn, problem = _outcome(partial(dealt, classes, num_clients=clients))
        assert "clients" in problem or len(drawn or ()) == clients, (
            f"partition.num_clients={clients}: {problem or drawn}"
        )


def _outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except UserError as problem:
        return None, str(problem)


def _contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def opened_files() -> AbstractContextManager[set[Path]]:
    return mock.patch(f"{__name__}._opened", set())


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is not None and event == "open" and not isinstance(arguments[0], int):
        _opened.add(Path(os.fsdecode(arguments[0])).absolute())


sys.addaudithook(_note_opened)  # cannot be removed, and does nothing outside opened_files()
