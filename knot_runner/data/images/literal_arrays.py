"""Arrays of unsigned bytes in a pickle: the names that it imports, each replaced here without any import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


class Refused(Exception):
    """The file is broken, or holds more than plain data; the text says what."""


@dataclass(frozen=True)
class GlobalName:
    """A name that the file imports; only ever compared with the known ones."""

    module: str
    name: str


class ByteType:
    """numpy's dtype of unsigned bytes, the only one known."""


@dataclass(eq=False)
class Array:
    """An array of unsigned bytes: ``shape``, and its values in C order. Empty until its state is set."""

    shape: tuple[int, ...] = (0,)
    data: bytes | bytearray = b""

    def fill(self, shape: Any, kind: Any, is_fortran: Any, data: Any) -> None:
        """Set shape and values, after every check. Raises :class:`Refused`."""
        is_shape = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not (is_shape and isinstance(kind, ByteType) and isinstance(data, bytes | bytearray) and not is_fortran):
            raise Refused("has an array that is not of unsigned bytes in C order")
        if int(np.prod(shape, dtype=object)) != len(data):
            raise Refused(f"has an array of shape {shape} with {len(data)} bytes")
        self.shape, self.data = shape, data

    def numpy(self) -> np.ndarray:
        """As a numpy array, uint8."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape)


class TextDecoder:
    """Turns texts to bytes, ``budget`` bytes in all, so that one long text is not turned again and again."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def encode(self, text: str) -> bytes:
        """``text`` as latin-1."""
        self.budget -= len(text)
        if self.budget < 0:
            raise Refused("turns one text to bytes again and again")
        return text.encode("latin1")


def set_state(target: Any, state: Any) -> None:
    """What BUILD does to an array or its type. Raises :class:`Refused` for anything else."""
    if isinstance(target, ByteType) and isinstance(state, tuple):
        return  # version, byte order and field names; an unsigned byte has none
    if not (isinstance(target, Array) and isinstance(state, tuple) and len(state) == 5):
        raise Refused(f"sets the state of a {type(target).__name__}")
    target.fill(*state[1:])  # before them, the version


def known_name(module: str, name: str) -> GlobalName:
    """Returns the name, if it is a known one. Raises :class:`Refused`."""
    found = GlobalName(module, name)
    if found not in CALLS and found != NDARRAY:
        raise Refused(f"asks for {module[:60]}.{name[:60]}, which plain data does not need")
    return found


def reduce_call(callee: Any, arguments: Any, texts: TextDecoder) -> Any:
    """What REDUCE makes of a name and its arguments. Raises :class:`Refused`, or TypeError for too few or many."""
    if not (isinstance(callee, GlobalName) and callee in CALLS and isinstance(arguments, tuple)):
        raise Refused("calls something that is no function known here")
    return CALLS[callee](texts, *arguments)


def _show(value: Any) -> str:
    """A text as it is, anything else by its type: the repr of tuples that share tuples can have no end."""
    return repr(value[:20]) if isinstance(value, str | bytes) else f"a {type(value).__name__}"


def _empty(_: TextDecoder, kind: Any, shape: Any, code: Any) -> Array:
    if kind != NDARRAY or shape != (0,) or code not in ("b", b"b"):
        raise Refused("makes an array in an unknown way")
    return Array()


def _type(_: TextDecoder, code: Any, *flags: Any) -> ByteType:
    if code not in ("u1", b"u1") or not all(flag in (0, 1) for flag in flags):
        raise Refused(f"has an array of type {_show(code)}; images are of type u1 (unsigned bytes)")
    return ByteType()


def _bytes(texts: TextDecoder, text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise Refused(f"encodes by {_show(encoding)}; only latin1 is known")
    return texts.encode(text)


def _full(_: TextDecoder, data: Any, kind: Any, shape: Any, order: Any) -> Array:
    array = Array()
    array.fill(shape, kind, order != "C", data)
    return array


NDARRAY = GlobalName("numpy", "ndarray")
#: numpy 1 and Python 2 say numpy.core, numpy 2 numpy._core
CALLS: dict[GlobalName, Callable[..., Any]] = {
    GlobalName("numpy.core.multiarray", "_reconstruct"): _empty,
    GlobalName("numpy._core.multiarray", "_reconstruct"): _empty,
    GlobalName("numpy.core.numeric", "_frombuffer"): _full,
    GlobalName("numpy._core.numeric", "_frombuffer"): _full,
    GlobalName("numpy", "dtype"): _type,
    GlobalName("_codecs", "encode"): _bytes,
}
