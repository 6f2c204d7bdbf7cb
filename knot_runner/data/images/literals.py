"""Python batches of CIFAR without unpickling: a pickle's stack machine that knows only what plain data needs.

It builds dicts, lists, tuples, whole numbers, texts and uint8 arrays. Opcodes and names are compared with those known
here; any other is refused, so that nothing in the file is ever called or imported.
"""

from __future__ import annotations

import pickletools
from enum import Enum
from typing import Any

import numpy as np

MAX_OPCODES = 2_000_000  # the official files have 0.4e6 (CIFAR-100 train) at most
VALUES = {f"{kind}BIN{what}" for kind in ("SHORT_", "") for what in ("UNICODE", "BYTES")}
VALUES |= {"NONE", "BININT", "BININT1", "BININT2", "BINUNICODE8", "BINBYTES8", "BYTEARRAY8"}
EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NEWTRUE": lambda: True, "NEWFALSE": bool}
#: opcodes that take items off the stack -> how many, 0: those since the mark
TAKEN = {"TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0}
TAKEN |= {"STACK_GLOBAL": 2, "REDUCE": 2}
PickleName = Enum("PickleName", "ARRAY EMPTY_ARRAY FULL_ARRAY TYPE ENCODE BYTE")
#: numpy 1 and Python 2 say numpy.core, numpy 2 numpy._core
PICKLE_NAMES = {f"numpy.{core}.multiarray _reconstruct": PickleName.EMPTY_ARRAY for core in ("core", "_core")}
PICKLE_NAMES |= {f"numpy.{core}.numeric _frombuffer": PickleName.FULL_ARRAY for core in ("core", "_core")}
PICKLE_NAMES |= {"numpy ndarray": PickleName.ARRAY, "numpy dtype": PickleName.TYPE, "_codecs encode": PickleName.ENCODE}


class Refused(Exception):
    """The file is broken, or holds more than plain data; the text says what."""


class _Array:
    values = np.empty(0, np.uint8)

    def fill(self, shape: Any, kind: Any, is_fortran: Any, data: Any) -> _Array:
        is_shape = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        is_plain = is_shape and kind is PickleName.BYTE and isinstance(data, bytes | bytearray) and not is_fortran
        if not is_plain:
            raise Refused("has an array that is not of unsigned bytes in C order")
        self.values = np.frombuffer(data, np.uint8).reshape(shape)
        return self


def read_literals(content: bytes) -> Any:
    """The value in ``content``: dicts (keys str or bytes), lists, tuples, whole numbers, texts, and in the top dict
    uint8 numpy arrays. Raises :class:`Refused`."""
    machine = _Machine(len(content))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MAX_OPCODES:
                raise Refused(f"has more than {MAX_OPCODES} opcodes")
            machine.step(opcode.name, argument)
        value = machine.stack.pop()
    except (IndexError, KeyError, ValueError, OverflowError, TypeError, AttributeError) as problem:
        raise Refused(f"is cut short or broken ({type(problem).__name__})") from None
    if not isinstance(value, dict):
        return value
    return {key: item.values if isinstance(item, _Array) else item for key, item in value.items()}


class _Machine:
    def __init__(self, budget: int) -> None:
        self.stack, self.below, self.memo, self.budget = [], [], {}, budget  # budget: bytes that texts are turned to

    def step(self, name: str, argument: Any) -> None:
        if name in VALUES or name in EMPTY:
            self.stack.append(EMPTY[name]() if name in EMPTY else argument)
        elif name in ("SHORT_BINSTRING", "BINSTRING"):
            self.stack.append(argument.encode("latin1"))  # as which it was decoded; Python 2's texts are bytes
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif name == "GLOBAL":
            self.put(name, [argument])
        elif name == "BUILD":
            state, target = self.stack.pop(), self.stack[-1]
            if target is not PickleName.BYTE:  # its byte order and fields say nothing
                target.fill(*state[1:])  # before them, the version
        elif name in TAKEN:
            items = [self.stack.pop() for _ in range(TAKEN[name] or len(self.stack))][::-1]
            self.stack = self.stack if TAKEN[name] else self.below.pop()
            self.put(name, items)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Refused(f"asks for opcode {name}, which plain data does not need")

    def put(self, name: str, items: list[Any]) -> None:
        if name.startswith("TUPLE"):
            self.stack.append(tuple(items))
        elif name.startswith("APPEND"):
            list.extend(self.stack[-1], items)
        elif name.startswith("SETITEM"):
            if not all(isinstance(key, str | bytes) for key in items[::2]):
                raise Refused("has a key that is not a text")
            dict.update(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name == "REDUCE":
            self.stack.append(self.call(*items))
        elif (asked := " ".join(items)) in PICKLE_NAMES:
            self.stack.append(PICKLE_NAMES[asked])
        else:
            raise Refused(f"asks for {'.'.join(asked.split())[:120]}, which plain data does not need")

    def call(self, callee: Any, arguments: Any) -> Any:
        match callee, arguments:
            case PickleName.EMPTY_ARRAY, (PickleName.ARRAY, (0,), "b" | b"b"):
                return _Array()
            case PickleName.FULL_ARRAY, (data, kind, shape, order):
                return _Array().fill(shape, kind, order != "C", data)
            case PickleName.TYPE, ("u1" | b"u1", *flags) if all(flag in (0, 1) for flag in flags):
                return PickleName.BYTE
            case PickleName.TYPE, (str() | bytes() as code, *_):
                raise Refused(f"has an array of type {code[:20]!r}; images are of type u1 (unsigned bytes)")
            case PickleName.ENCODE, (str() as text, "latin1" | b"latin1") if len(text) <= self.budget:
                self.budget -= len(text)  # so that one long text is not turned again and again
                return text.encode("latin1")
        raise Refused("calls a name in a way, or as often, as plain data does not need")
