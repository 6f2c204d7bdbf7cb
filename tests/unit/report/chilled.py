"""Building a table of temperatures, and finding a cell in it."""

from __future__ import annotations

from typing import Any

from knot_runner.report.tables.build import build_table

ALL = ["accuracy", "delta", "loss", "plain_loss", "rounds", "speedup"]


def cell(table: Any, settings: tuple[str, ...], metric: str, case: str = "FEMNIST-DNN") -> Any:
    row = next(row for row in table.rows if row.keys == settings)
    return row.cells[f"{case}: {metric}"][0]


def build(jobs: list[Any], metrics: list[str] = ALL, paper: str | None = "chill/table1", **options: Any) -> Any:
    return build_table(jobs, paper, metrics, kind="temperatures", options=options)
