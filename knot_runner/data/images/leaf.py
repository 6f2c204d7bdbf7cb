"""LEAF json (Caldas et al. 2018): {users: [name], num_samples: [n], user_data: {name: {x: [[pixel]], y: [label]}}}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.types import Images
from knot_runner.util.errors import UserError

#: LEAF divides bytes by 255, and some copies round that to four places: within this of k/255, k is what was meant
ROUNDED = 5.1e-5

#: one writer's pixels (uint8 or float32 [n, channels * height * width]) and labels (int64 [n])
Writer = tuple[np.ndarray, np.ndarray]


def read_leaf(
    folder: DataFolder, train: list[str], test: list[str], shape: list[int], classes: int
) -> tuple[Images, Images | None, list[str], list[str]]:
    """Train and test images, names of writers, names of files.

    ``train`` and ``test`` are json files or folders of them. A writer is in one train file; ``files`` says which, for
    the writer's test images too, whatever test file they lie in (LEAF's own names of test shards differ). ``test``
    empty: no test images. Raises :class:`UserError` naming file and writer for anything that does not fit.
    """
    side = int(np.prod(shape))
    shards = [(folder.short(path), _read(path, side, classes)) for path in _files(folder, train)]
    home: dict[str, int] = {}
    for number, (name, writers) in enumerate(shards):
        for writer in writers:
            if writer in home:
                raise UserError(f"{name}: writer {writer!r} is in {shards[home[writer]][0]} too")
            home[writer] = number
    numbers = {writer: number for number, writer in enumerate(home)}
    tested: dict[str, Writer] = {}
    for path in _files(folder, test):
        for writer, rows in _read(path, side, classes).items():
            _check_known(path, writer, numbers, tested)
            tested[writer] = rows
    both = [{k: v for _, shard in shards for k, v in shard.items()}, tested]
    exact = all(pixels.dtype == np.uint8 for part in both for pixels, _ in part.values())
    made = [_images(part, numbers, home, shape, exact) for part in both]
    return made[0], made[1] if test else None, list(numbers), [name for name, _ in shards]


def _check_known(path: Path, writer: str, numbers: dict[str, int], tested: dict[str, Writer]) -> None:
    if writer not in numbers:
        raise UserError(f"{path}: writer {writer!r} is in no train file; task.local.train and test do not go together")
    if writer in tested:
        raise UserError(f"{path}: writer {writer!r} is in an earlier test file too")


def _files(folder: DataFolder, entries: list[str]) -> list[Path]:
    paths: list[Path] = []
    for entry in entries:
        path = folder.path(entry)
        found = folder.members(path, "*.json") if path.is_dir() else [folder.file(path)]
        if not found:
            raise UserError(f"{path}: this folder has no .json file")
        paths.extend(found)
    return paths


def _images(
    writers: dict[str, Writer], numbers: dict[str, int], home: dict[str, int], shape: list[int], exact: bool
) -> Images:
    """All writers' images, one writer after another; bytes where every file's pixels are such (``exact``)."""
    kind = np.uint8 if exact else np.float32
    users = np.repeat([numbers[name] for name in writers], [len(labels) for _, labels in writers.values()])
    files = np.array([home[name] for name in numbers], dtype=np.int64)[users.astype(np.int64)]
    pixels = [p if p.dtype == kind else p.astype(np.float32) / 255 for p, _ in writers.values()]
    labels = [labels for _, labels in writers.values()]
    flat = np.concatenate([np.zeros((0, int(np.prod(shape))), kind), *pixels])
    return Images(
        flat.reshape(-1, *shape), np.concatenate([np.zeros(0, np.int64), *labels]), users.astype(np.int64), files
    )


def _read(path: Path, side: int, classes: int) -> dict[str, Writer]:
    """The writers of one file, in the order of its ``users``, with the sizes it claims."""
    content = _parse(path)
    users, counts, data = (content.get(key) for key in ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise UserError(f"{path}: is not LEAF json; it needs the lists users, num_samples and the object user_data")
    foreign = [name for name in users if not isinstance(name, str)]
    if foreign:
        raise UserError(f"{path}: users has {foreign[0]!r:.40}, which is no text; the names of writers are texts")
    if len(set(users)) < len(users) or set(users) != data.keys():
        raise UserError(f"{path}: users has {len(users)} names that are not those of its {len(data)} user_data")
    if len(counts) != len(users):
        raise UserError(f"{path}: has {len(users)} users, but {len(counts)} num_samples")
    return {
        name: _writer(f"{path}: writer {name!r}", data.pop(name), count, side, classes)
        for name, count in zip(users, counts, strict=True)
    }


def _parse(path: Path) -> dict[str, Any]:
    def refuse(word: str) -> NoReturn:
        raise UserError(f"{path}: holds {word}, which is no pixel value")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise UserError(f"{path}: a key is there twice in one object: {', '.join(k for k, _ in pairs)[:100]}")
        return made

    try:
        content = json.loads(path.read_bytes(), parse_constant=refuse, object_pairs_hook=once)
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        reason = getattr(problem, "msg", None) or type(problem).__name__
        raise UserError(f"{path}: not valid JSON ({reason}); the file may be cut short") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a JSON object is expected, not a {type(content).__name__}")
    return content


def _writer(where: str, rows: Any, count: Any, side: int, classes: int) -> Writer:
    x, y = (rows.get("x"), rows.get("y")) if isinstance(rows, dict) else (None, None)
    if not (isinstance(x, list) and isinstance(y, list)):
        raise UserError(f"{where}: needs the lists x and y")
    if not len(x) == len(y) == count:
        raise UserError(f"{where}: has {len(x)} x and {len(y)} y, and num_samples says {count}")
    wrong = [label for label in y if type(label) is not int or not 0 <= label < classes]
    if wrong:
        raise UserError(f"{where}: label {wrong[0]!r:.40} is not one of task.classes, 0 to {classes - 1}")
    return _pixels(where, x, side), np.array(y, dtype=np.int64)


def _pixels(where: str, x: list[Any], side: int) -> np.ndarray:
    """[n, side] uint8 where all values are k/255 (see :data:`ROUNDED`), else float32."""
    if not x:
        return np.zeros((0, side), np.uint8)
    if any(not isinstance(row, list) or len(row) != side for row in x):
        raise UserError(f"{where}: an x is not {side} numbers, as task.shape has it")
    try:
        values = np.array(x)
    except ValueError:  # lists in lists of unlike lengths
        values = np.array([])
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise UserError(f"{where}: an x holds something that is not a number")
    if values.min() < 0 or values.max() > 1:
        raise UserError(f"{where}: its pixels lie in {values.min()} to {values.max()}; LEAF's are 0 to 1")
    steps = np.rint(values * 255)
    return steps.astype(np.uint8) if np.abs(values - steps / 255).max() <= ROUNDED else values.astype(np.float32)
