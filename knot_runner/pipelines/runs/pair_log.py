"""Log of the finished pairs of a distance matrix, so that a kill costs about a second of work."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knot_runner.config.strict import digest
from knot_runner.util.files import append_synced, set_aside_files

#: Seconds between two entries of the log; a pair is logged by the first that is due after it.
SYNC_SECONDS = 1.0
IndexPair = tuple[int, int]


class PairLog:
    """Distances of pairs (i, j), i < j < ``size``, in the file ``path``: one JSON line per entry, with some pairs,
    their values and their seconds. Use under a lock.

    Each entry holds a chained digest of itself, all entries before it and the folder's name. A last line cut off by a
    kill is dropped; a log that does not match is set aside with a warning, and all pairs are measured again.
    """

    def __init__(self, path: Path, size: int, note: Callable[[str], None]) -> None:
        self.path, self.size = path, size
        self._begin()
        try:
            self._read()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            place = set_aside_files(path.parent, [path.name])
            note(f"{path}: is damaged or of other work; set aside in {place}, and all pairs are measured again")
            self._begin()
        self._since = time.monotonic()

    def add(self, pairs: list[IndexPair], values: list[float]) -> None:
        """Adds finished pairs; an entry is written when due."""
        found = {(min(pair), max(pair)): float(value) for pair, value in zip(pairs, values, strict=True)}
        self.done |= found
        self._waiting |= found
        if time.monotonic() - self._since >= SYNC_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes pending pairs, durably."""
        now = time.monotonic()
        if self._waiting:
            entry = {"pairs": list(self._waiting), "values": list(self._waiting.values()), "seconds": now - self._since}
            seal = self._sealed(entry)
            append_synced(self.path, json.dumps({**entry, "digest": seal}, allow_nan=False))
            self.seconds += now - self._since
            self._waiting, self._seal = {}, seal
        self._since = now

    def _begin(self) -> None:
        #: every pair so far, logged or not
        self.done: dict[IndexPair, float] = {}
        #: of work, in all entries
        self.seconds = 0.0
        self._waiting: dict[IndexPair, float] = {}
        self._seal = self.path.parent.name

    def _sealed(self, entry: dict[str, Any]) -> str:
        """Returns the chained digest of an entry after those so far."""
        return digest([self._seal, entry], 64)

    def _read(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._take(json.loads(line))
        if len(whole) < len(content):
            with self.path.open("rb+") as file:
                file.truncate(len(whole))

    def _take(self, entry: dict[str, Any]) -> None:
        seal = entry.pop("digest")
        if seal != self._sealed(entry):
            raise ValueError
        for (i, j), value in zip(entry["pairs"], entry["values"], strict=True):
            if not (0 <= i < j < self.size and math.isfinite(value) and value >= 0):
                raise ValueError
            self.done[i, j] = float(value)
        self._seal = seal
        self.seconds += float(entry["seconds"])
