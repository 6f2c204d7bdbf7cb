"""Reader of CIFAR-10 and CIFAR-100 as published: binary or Python batch files, in a folder or a tar archive.

In a binary file, each image follows its label: one byte in CIFAR-10, a coarse and a fine byte in CIFAR-100. An image
has 3,072 bytes: the red, green and blue planes of 32x32 pixels. A Python file is a pickled dict. For N images, its item
``data`` has shape [N, 3072], and ``labels`` or ``fine_labels`` has length N. No code in a pickle is imported or called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import by_part, read_members
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

SHAPE = (3, 32, 32)
PIXELS = 3072
MAX_BYTES = 400_000_000  # limit for a batch file; official files have at most 155 MB
#: number of images in each split of the official releases
CIFAR_SIZES = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class CifarLayout:
    """The layout of an official release: folder name, batch files per split, and number of label bytes per image."""

    folder: str
    files: dict[str, list[str]]
    label_bytes: int


_TEN = [f"data_batch_{i}" for i in range(1, 6)]
#: if a folder contains several releases, the first release in this list is read
CIFAR_LAYOUTS = (
    CifarLayout("cifar-10-batches-bin", {"train": [f"{name}.bin" for name in _TEN], "test": ["test_batch.bin"]}, 1),
    CifarLayout("cifar-100-binary", {"train": ["train.bin"], "test": ["test.bin"]}, 2),
    CifarLayout("cifar-10-batches-py", {"train": _TEN, "test": ["test_batch"]}, 1),
    CifarLayout("cifar-100-python", {"train": ["train"], "test": ["test"]}, 2),
)


def read_cifar(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return train and test images from folders of batch files, or from tar archives (.tar, .tar.gz) of such folders.

    The images are uint8 of shape [N, 3, 32, 32]. CIFAR-100 uses the fine labels. If the number of images differs
    from that of the official release, a note is added to the result.

    Raises:
        UserError: A file is damaged. The message names the file.
    """
    parts = by_part(_read_part)(folder, settings)
    for part, size in CIFAR_SIZES.items():
        images = getattr(parts, part)
        # A file that was truncated between two images shows no other sign of damage.
        if images is not None and len(images) != size:
            parts.notes.append(f"{settings.name}: {len(images)} {part} images, but the official release has {size}")
    return parts


def _read_part(
    folder: DataFolder, entries: list[str], part: str, settings: ImageTaskSettings
) -> Iterator[tuple[str, Images]]:
    for entry in entries:
        for name, content, layout in _batches(folder, folder.path(entry), part):
            decode = _binary if name.endswith(".bin") else _python
            yield name, decode(name, content, layout)


def _batches(folder: DataFolder, path: Path, part: str) -> Iterator[tuple[str, bytes, CifarLayout]]:
    """Yield the name, bytes and layout of each batch file."""
    if path.is_dir():
        layout = _layout(path, part, {file.name for file in path.iterdir()})
        for name in layout.files[part]:
            file = folder.file(path / name)
            size = file.stat().st_size
            if size > MAX_BYTES:
                raise UserError(f"has {size} bytes, more than the limit of {MAX_BYTES}", file)
            yield str(file), file.read_bytes(), layout
        return
    wanted = {f"{layout.folder}/{name}" for layout in CIFAR_LAYOUTS for name in layout.files[part]}
    members = read_members(folder.file(path), wanted, MAX_BYTES)
    layout = _layout(path, part, {name.rpartition("/")[2] for name in members})
    for name in layout.files[part]:
        member = f"{layout.folder}/{name}"
        if member not in members:
            raise UserError(f"member {member} is missing", path)
        yield f"{path}/{member}", members[member], layout


def _layout(path: Path, part: str, names: set[str]) -> CifarLayout:
    """Return the first release in ``CIFAR_LAYOUTS`` that has a file among ``names``."""
    for layout in CIFAR_LAYOUTS:
        if not names.isdisjoint(layout.files[part]):
            return layout
    raise UserError(
        f"no CIFAR {part} batches found. Looked for {', '.join(layout.files[part][0] for layout in CIFAR_LAYOUTS)}",
        path,
    )


def _binary(name: str, content: bytes, layout: CifarLayout) -> Images:
    size = layout.label_bytes + PIXELS
    if not content or len(content) % size:
        raise UserError(
            f"has {len(content)} bytes, but each image needs {size} bytes. The file is truncated or corrupt", name
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, layout.label_bytes - 1].astype(np.int64)
    return Images(records[:, layout.label_bytes :].reshape(-1, *SHAPE), labels)


def _python(name: str, content: bytes, layout: CifarLayout) -> Images:
    try:
        batch = read_literals(content)
    except Refused as problem:
        raise UserError(f"{problem}. Use the files of the official CIFAR release", name) from None
    if not isinstance(batch, dict):
        raise UserError(f"expected a dict (as in a CIFAR batch), got {type(batch).__name__}", name)
    key = "labels" if layout.label_bytes == 1 else "fine_labels"
    # the names are bytes in Python 2's pickles
    data, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", key))
    if not isinstance(data, np.ndarray) or data.shape[1:] != (PIXELS,):
        raise UserError(f"'data': expected unsigned bytes of shape [N, {PIXELS}]", name)
    whole = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)
    if not whole or len(labels) != len(data):
        raise UserError(f"{key!r}: expected a list of {len(data)} whole numbers", name)
    return Images(data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64))


# ---------------------------------------------------------------------------------------------------------- literals


MAX_OPCODES = 2_000_000  # official files have at most 0.4e6 (CIFAR-100 train)
VALUES = ["NONE", "BININT", "BININT1", "BININT2", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"]
VALUES += ["SHORT_BINBYTES", "BINBYTES", "BINBYTES8"]
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NEWTRUE": lambda: True, "NEWFALSE": bool}
#: opcodes that pop items from the stack -> number of items; 0: all items above the mark
TAKEN = {"TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0}
TAKEN |= {"STACK_GLOBAL": 2, "REDUCE": 2}
PickleName = Enum("PickleName", "ARRAY EMPTY_ARRAY TYPE ENCODE BYTE")
#: pickled name that plain data needs -> its meaning. numpy 2 has renamed the module numpy.core to numpy._core
PICKLE_NAMES = {
    "numpy.core.multiarray _reconstruct": PickleName.EMPTY_ARRAY,
    "numpy._core.multiarray _reconstruct": PickleName.EMPTY_ARRAY,
    "numpy ndarray": PickleName.ARRAY,
    "numpy dtype": PickleName.TYPE,
    "_codecs encode": PickleName.ENCODE,
}


class Refused(Exception):
    """Raised if a pickle is damaged, or contains values that are not plain data. The message states the reason."""


class _Array:
    values = np.empty(0, np.uint8)

    def fill(self, shape: Any, kind: Any, is_fortran: Any, data: Any) -> None:
        is_shape = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or kind is not PickleName.BYTE or not isinstance(data, bytes) or is_fortran:
            raise Refused("expected arrays of unsigned bytes in C order")
        self.values = np.frombuffer(data, np.uint8).reshape(shape)


def read_literals(content: bytes) -> Any:
    """Return the Python value in the pickle ``content``, without running code.

    The value may contain dicts (with keys of type str or bytes), lists, tuples, numbers, strings, bytes and None. The
    values of the outermost dict may also be uint8 arrays.

    Raises:
        Refused: The pickle is damaged, or contains a value that is not listed above.
    """
    machine = _Machine(len(content))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MAX_OPCODES:
                raise Refused(f"has more than {MAX_OPCODES} opcodes")
            machine.step(opcode.name, argument)
        value = machine.stack.pop()
    except (IndexError, KeyError, ValueError, OverflowError, TypeError, AttributeError) as problem:
        raise Refused(f"truncated or corrupt ({type(problem).__name__})") from None
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, _Array):
                value[key] = item.values
    return value


class _Machine:
    def __init__(self, budget: int) -> None:
        self.stack, self.below, self.memo, self.budget = [], [], {}, budget  # budget: bytes to encode

    def step(self, name: str, argument: Any) -> None:
        if name in VALUES:
            self.stack.append(argument)
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in ("SHORT_BINSTRING", "BINSTRING"):
            self.stack.append(argument.encode("latin1"))  # undoes the decoding; Python 2's texts are bytes
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif name == "GLOBAL":
            self.put(name, [argument])
        elif name == "BUILD":
            state = self.stack.pop()
            target = self.stack[-1]
            if target is not PickleName.BYTE:  # byte order and fields of a byte are irrelevant
                target.fill(*state[1:])  # the first item is the version
        elif name in TAKEN:
            items = [self.stack.pop() for _ in range(TAKEN[name] or len(self.stack))][::-1]
            if not TAKEN[name]:
                self.stack = self.below.pop()
            self.put(name, items)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Refused(f"the pickle opcode {name} is not allowed")

    def put(self, name: str, items: list[Any]) -> None:
        if name.startswith("TUPLE"):
            self.stack.append(tuple(items))
        elif name.startswith("APPEND"):
            list.extend(self.stack[-1], items)
        elif name.startswith("SETITEM"):
            if not all(isinstance(key, str | bytes) for key in items[::2]):
                raise Refused("a key is not a string")
            dict.update(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name == "REDUCE":
            self.stack.append(self.call(*items))
        elif (asked := " ".join(items)) in PICKLE_NAMES:
            self.stack.append(PICKLE_NAMES[asked])
        else:
            raise Refused(f"the pickled name {'.'.join(asked.split())[:120]} is not allowed")

    def call(self, callee: Any, arguments: Any) -> Any:
        match callee, arguments:
            case PickleName.EMPTY_ARRAY, (PickleName.ARRAY, (0,), "b" | b"b"):
                return _Array()
            case PickleName.TYPE, ("u1" | b"u1", *flags) if all(flag in (0, 1) for flag in flags):
                return PickleName.BYTE
            case PickleName.TYPE, (str() | bytes() as code, *_):
                raise Refused(f"an array has type {code[:20]!r} instead of 'u1' (unsigned bytes)")
            case PickleName.ENCODE, (str() as text, "latin1" | b"latin1") if len(text) <= self.budget:
                self.budget -= len(text)  # limits repeated encoding of one long text
                return text.encode("latin1")
        raise Refused("a pickled name is called in a way that is not allowed")
