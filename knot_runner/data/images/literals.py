"""The plain data in a python batch of CIFAR, read without unpickling: nothing in the file is ever called or imported.

A pickle is a program for a small stack machine. This is that machine with everything taken away that the official
files and a Python 3 dump of the same dict do not need: it builds dicts, lists, tuples, whole numbers and texts, and
knows the few names of :mod:`.literal_arrays`. Any other opcode or name is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from knot_runner.data.images.literal_arrays import Array, Refused, TextDecoder, known_name, reduce_call, set_state

#: far above the official files: 0.4e6 opcodes (CIFAR-100 train), 155 MB
MAX_OPCODES = 2_000_000
MAX_BYTES = 400_000_000


def read_literals(content: bytes) -> Any:
    """The value in ``content``: dicts, lists, tuples, whole numbers, texts, and in the top dict uint8 numpy arrays.

    Dict keys are str or bytes. Raises :class:`Refused`.
    """
    if len(content) > MAX_BYTES:
        raise Refused(f"has {len(content)} bytes, more than {MAX_BYTES}")
    machine = _Machine(len(content))
    try:
        for name, argument in _opcodes(io.BytesIO(content)):
            machine.step(name, argument)
        value = machine.pop()
    except (IndexError, KeyError, ValueError, OverflowError, TypeError) as problem:
        raise Refused(f"is cut short or broken ({type(problem).__name__})") from None
    if not isinstance(value, dict):
        return value
    return {key: item.numpy() if isinstance(item, Array) else item for key, item in value.items()}


def _opcodes(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Name and argument of each opcode up to STOP; one not known is refused before its argument is even read."""
    for _ in range(MAX_OPCODES):
        code = stream.read(1)
        opcode = OPCODES.get(code)
        if opcode is None:
            name = next((op.name for op in pickletools.opcodes if op.code.encode("latin1") == code), repr(code))
            raise Refused(f"asks for opcode {name}, which plain data does not need" if code else "is cut short")
        if opcode.name == "STOP":
            return
        yield opcode.name, opcode.arg.reader(stream) if opcode.arg else None
    raise Refused(f"has more than {MAX_OPCODES} opcodes")


class _Mark:
    """Where the items of a list, tuple or dict begin on the stack."""


class _Machine:
    """Stack and memo."""

    def __init__(self, budget: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.texts = TextDecoder(budget)

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode of :data:`OPCODES`."""
        if name in LITERALS:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name]())
        elif name in ACTIONS:
            ACTIONS[name](self, argument)

    def pop(self) -> Any:
        """The top of the stack, taken off; a mark there means a broken file."""
        if isinstance(self.stack[-1], _Mark):
            raise ValueError
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, taken off with it."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
            if at < 0:
                raise ValueError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def top(self, kind: type) -> Any:
        """The top of the stack, left there, which must be a ``kind``."""
        if not isinstance(self.stack[-1], kind):
            raise Refused(f"fills a {type(self.stack[-1]).__name__} as if it were a {kind.__name__}")
        return self.stack[-1]


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return act


def _mark_tuple(machine: _Machine, _: Any) -> None:
    machine.stack.append(tuple(machine.since_mark()))


def _append(machine: _Machine, _: Any) -> None:
    item = machine.pop()
    machine.top(list).append(item)


def _appends(machine: _Machine, _: Any) -> None:
    items = machine.since_mark()
    machine.top(list).extend(items)


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.pop(), machine.pop()
    _fill(machine.top(dict), [key, value])


def _set_items(machine: _Machine, _: Any) -> None:
    items = machine.since_mark()
    _fill(machine.top(dict), items)


def _fill(target: dict[Any, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes):
            raise Refused(f"has a key that is a {type(key).__name__}, not a text")
        target[key] = value


def _put(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _get(machine: _Machine, place: int) -> None:
    machine.stack.append(machine.memo[place])


def _python2_text(machine: _Machine, text: str) -> None:
    machine.stack.append(text.encode("latin1"))  # as which it was decoded; Python 2's texts are bytes


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _global(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(known_name(module, name))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise Refused("asks for a name that is no text")
    machine.stack.append(known_name(module, name))


def _reduce(machine: _Machine, _: Any) -> None:
    arguments, callee = machine.pop(), machine.pop()
    machine.stack.append(reduce_call(callee, arguments, machine.texts))


def _build(machine: _Machine, _: Any) -> None:
    state = machine.pop()
    set_state(machine.stack[-1], state)


#: opcodes whose argument is the value itself
LITERALS = {
    *("BININT", "BININT1", "BININT2", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": _Mark,
}
ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "SHORT_BINSTRING": _python2_text,
    "BINSTRING": _python2_text,
    "TUPLE": _mark_tuple,
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "MEMOIZE": _memoize,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "BUILD": _build,
}
#: code byte -> the opcode; the last three do nothing to the stack
OPCODES = {
    opcode.code.encode("latin1"): opcode
    for opcode in pickletools.opcodes
    if opcode.name in {*LITERALS, *CONSTANTS, *ACTIONS, "PROTO", "FRAME", "STOP"}
}
