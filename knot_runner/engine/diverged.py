"""Training diverged (non-finite loss or weights): recorded as such; a sweep goes on."""

from __future__ import annotations

from typing import Any


class DivergedError(Exception):
    """A loss or weight is not finite; the step is discarded. ``where``: round and client, for the record."""

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text)
        self.where = where
