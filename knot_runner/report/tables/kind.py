"""What a kind of table is: the function that makes it, and what it can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.render.table_model import Parts
from knot_runner.report.run_folders import Run


@dataclass(frozen=True)
class TableRequest:
    """What a table is made of. ``runs``: those that the preset asks for, finished or not; ``printed``: the paper's
    table beside it, None without; ``metrics``: what is shown, in this order; ``options``: the preset's ``report:``;
    ``command``: what makes the runs."""

    runs: Sequence[Run]
    printed: dict[str, Any] | None
    metrics: Sequence[str]
    options: Mapping[str, Any]
    command: str


@dataclass(frozen=True)
class TableKind:
    """``make``: the rows, their heads, the groups of columns and the lines below. ``metrics``: the names that
    ``report.metrics`` may have, None for any; ``usual``: those of a preset that names none; ``beside``: kind of the
    paper's table that can stand beside it, "" for none; ``needs``: one of them, where rows or columns are its own."""

    make: Callable[[TableRequest], Parts]
    metrics: Callable[[], Collection[str]] | None = None
    usual: Sequence[str] = ("f1", "sd")
    beside: str = ""
    needs: str = ""
