"""A kind of table: the function that builds it, and its valid options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.render.table_model import Parts
from knot_runner.report.run_folders import Run


@dataclass(frozen=True)
class TableRequest:
    """Inputs of a table. ``runs``: those of the preset, finished or not; ``printed``: the paper's table beside it, or
    None; ``metrics``: those shown, in this order; ``options``: the preset's ``report:``; ``command``: the command that
    makes the runs."""

    runs: Sequence[Run]
    printed: dict[str, Any] | None
    metrics: Sequence[str]
    options: Mapping[str, Any]
    command: str


@dataclass(frozen=True)
class TableKind:
    """A kind of table. ``make``: returns rows, their heads, groups of columns and footnotes. ``metrics``: valid names
    in ``report.metrics``, None for any; ``usual``: the default ones; ``printed``: kind of the paper's table that
    can be shown beside it, "" for none; ``needs``: a suitable printed table, if the kind requires one since its rows or
    columns come from it."""

    make: Callable[[TableRequest], Parts]
    metrics: Callable[[], Collection[str]] | None = None
    usual: Sequence[str] = ("f1", "sd")
    printed: str = ""
    needs: str = ""
