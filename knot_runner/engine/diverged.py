"""A training that left the numbers: recorded as such, and no reason to stop a sweep."""

from __future__ import annotations

from typing import Any


class DivergedError(Exception):
    """A loss or weight that is not finite: nothing of the step is kept. ``where``: round, client, for the record."""

    def __init__(self, text: str, **where: Any) -> None:
        super().__init__(text)
        self.where = where
