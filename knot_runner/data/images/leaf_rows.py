"""Images of LEAF json by a table of how files spell the 256 byte values: a fifth of the time of parsing their numbers.

A list of numbers that the table knows is replaced by a placeholder word before the rest is parsed as JSON. Where this
could differ from plain parsing (the word is already in the text, or occurs outside images, or escapes could spell it),
:class:`UntrustworthyRows` is raised, and the file is parsed normally.
"""

from __future__ import annotations

from functools import cache

import numpy as np

#: LEAF's pixels are bytes divided by 255, in some copies rounded to four places: within this of k/255, the byte is k
ROUNDED = 5.1e-5
#: What stands for an image that was taken out, followed by its number.
WORD = "image taken out "


class UntrustworthyRows(Exception):
    """The file must be parsed normally."""


class TakenOut:
    """The images of one file that were taken out of its ``text``, ``side`` pixels each; ``left``: the text without."""

    def __init__(self, text: bytes, side: int) -> None:
        self._side, self._rows, self._used = side, list[bytes](), 0
        if WORD.encode() in text or b"\\" in text:
            raise UntrustworthyRows
        self.left = b"".join(self._parts(text))

    def _parts(self, text: bytes) -> list[bytes]:
        """The text in parts, each list of ``side`` known numbers replaced by its word."""
        table, parts, done, at = spelled_bytes(), list[bytes](), 0, 0
        while (end := text.find(b"]", at)) >= 0:
            start = text.rfind(b"[", at, end)
            at = end + 1
            words = text[start + 1 : end].split(b", ") if start >= 0 else []
            if len(words) != self._side:
                continue
            try:
                self._rows.append(bytes(map(table.__getitem__, words)))
            except KeyError:
                continue
            parts += [text[done:start], f'"{WORD}{len(self._rows) - 1}"'.encode()]
            done = at
        return [*parts, text[done:]]

    def pixels(self, rows: list[object]) -> np.ndarray | None:
        """uint8 [n, side] of one writer's ``rows`` that are all words; None where none is. Raises
        :class:`UntrustworthyRows` where some are."""
        words = [row for row in rows if isinstance(row, str) and row.startswith(WORD)]
        if not words:
            return None
        if len(words) < len(rows):
            raise UntrustworthyRows
        self._used += len(words)
        content = b"".join(self._rows[int(word.removeprefix(WORD))] for word in words)
        return np.frombuffer(content, dtype=np.uint8).reshape(len(words), self._side)

    def check(self) -> None:
        """After all writers. Raises :class:`UntrustworthyRows` where a word stood anywhere but among images."""
        if self._used != len(self._rows):
            raise UntrustworthyRows


@cache
def spelled_bytes() -> dict[bytes, int]:
    """Returns every spelling of k/255 that programs write (rounded or not, double or float32) -> k."""
    table = {b"0": 0, b"1": 255}
    for byte in range(256):
        value = byte / 255
        single = np.float32(value)
        texts = [repr(value), repr(float(single)), str(single)]
        texts += [f"{value:.{places}f}" for places in range(4, 18)]
        texts += [repr(round(value, places)) for places in range(4, 18)]
        table |= {text.encode(): byte for text in texts}
    return table
