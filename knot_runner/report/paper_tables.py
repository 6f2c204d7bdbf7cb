"""The papers' printed numbers: one YAML file per table in ``paper/``, keyed by our names of methods and data sets."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from knot_runner.util.errors import UserError, nearest

FOLDER = Path(__file__).parent / "paper"


def printed_tables() -> list[str]:
    """Names of the printed tables, such as ``knot/table2``."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


@cache
def read_printed(name: str) -> dict[str, Any]:
    """The printed table ``name``; treat it as read-only. Raises :class:`UserError` for an unknown name."""
    if name not in printed_tables():
        raise UserError(f"there is no printed table {name!r}{nearest(name, printed_tables())}")
    table: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return table


def printed_value(table: dict[str, Any], metric: str, method: str, dataset: str) -> float | None:
    """The printed number in a table of kind ``methods``; None if the paper prints none."""
    row = table["metrics"].get(metric, {}).get(method)
    return row[table["columns"].index(dataset)] if row is not None and dataset in table["columns"] else None


def cite(table: dict[str, Any]) -> str:
    """One line with the source of the numbers."""
    short = table["paper"].partition(":")[0]
    place = f", Table {table['table']}" if table["table"] is not None else ""
    return f"paper: {short}, arXiv {table['arxiv']} ({table['venue']}){place}"
