"""The finished pairs of a distance matrix, logged as they come, so that a kill costs about a second of work."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from knot_runner.errors import UserError
from knot_runner.files import append_synced

#: Seconds between two entries of the log; a pair is logged by the first that is due after it.
EVERY = 1.0
Pair = tuple[int, int]


class PairLog:
    """Distances of pairs (i, j), i < j < ``size``, in the file ``path``: one JSON line per entry, of some pairs with
    their values and the seconds they took. What a kill cut off the last line is dropped. Use under a lock."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        #: every pair so far, logged or not
        self.done: dict[Pair, float] = {}
        #: of work, in all entries
        self.seconds = 0.0
        self._waiting: dict[Pair, float] = {}
        self._read()
        self._since = time.monotonic()

    def add(self, pairs: list[Pair], values: list[float]) -> None:
        """Take finished pairs; written when an entry is due."""
        found = {(min(pair), max(pair)): float(value) for pair, value in zip(pairs, values, strict=True)}
        self.done |= found
        self._waiting |= found
        if time.monotonic() - self._since >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what waits, durably."""
        now = time.monotonic()
        if self._waiting:
            entry = {"pairs": list(self._waiting), "values": list(self._waiting.values()), "seconds": now - self._since}
            append_synced(self.path, json.dumps(entry, allow_nan=False))
            self.seconds += now - self._since
            self._waiting = {}
        self._since = now

    def _read(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("rb+") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError):
                raise UserError(
                    f"{self.path}: line {number}: is damaged; delete its folder and repeat the command"
                ) from None

    def _take(self, entry: dict[str, Any]) -> None:
        for (i, j), value in zip(entry["pairs"], entry["values"], strict=True):
            if not (0 <= i < j < self.size and math.isfinite(value) and value >= 0):
                raise ValueError
            self.done[i, j] = float(value)
        self.seconds += float(entry["seconds"])
