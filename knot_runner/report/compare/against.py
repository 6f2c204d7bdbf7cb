"""``compare --x``: the axis of a comparison, a setting or another measure such as bytes, and the Pareto front of the
table's rows on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from knot_runner.report.compare.files import Column, Sheet, cell_text
from knot_runner.report.compare.measures import direction, measure_title, resolve_measure
from knot_runner.report.compare.settings import resolve_key, sort_places
from knot_runner.report.render.text import first_few
from knot_runner.report.statistics.intervals import MeanEstimate
from knot_runner.util.errors import UserError, nearest

#: Maximum number of rows named in a line; of more only the number is given.
MAX_ROWS = 6


@dataclass(frozen=True)
class Axis:
    """``key``: the dotted key of a setting, or of a number in the results."""

    kind: Literal["setting", "measure"]
    key: str


def resolve_axis(name: str, settings: Sequence[str], measures: Sequence[str]) -> Axis:
    """The axis of ``name``: a measure, else a setting, by its key or short form. Raises :class:`UserError`."""
    try:
        return Axis("measure", resolve_measure(name, measures, "--x"))
    except UserError:
        pass
    try:
        return Axis("setting", resolve_key(name, settings))
    except UserError:
        hint = nearest(name, [*settings, *map(measure_title, measures)])
        usual = "; bytes, seconds, or a key of config.yaml would be right"
        shown = hint if "did you mean" in hint else usual
        raise UserError(f"--x={name}: no run has this setting, and no result this measure{shown}") from None


def in_order_of(sheet: Sheet, axis: Axis) -> Sheet:
    """``sheet`` with rows in ascending order of ``axis``, those without it last; if it is a measure, also with a line
    on the Pareto front of every other measure. Raises :class:`UserError` for a setting that the rows of a choice
    lack."""
    column = next((column for column in sheet.columns if column.name == axis.key), None)
    if any(one.name.startswith(f"{axis.key} (") for one in sheet.columns):
        raise UserError(f"--x={axis.key}: the runs have several kinds of it. Filter them, as in method.name=NAME")
    if column is None:
        raise UserError(f"--x={axis.key}: is not shown; with --best it goes into --by, too")
    ordered = sorted_rows(sheet, column)
    if axis.kind == "setting":
        return ordered
    others = [one for one in ordered.columns if one.kind in ("measure", "value") and one.name != axis.key]
    lines = [line for one in others for line in _front_line(ordered, column, one)]
    return replace(ordered, lines=(*ordered.lines, *lines))


def sorted_rows(sheet: Sheet, column: Column, sign: int = 1) -> Sheet:
    """``sheet`` with rows in ascending order of ``column``; numbers in descending order for ``sign`` -1."""
    cells = sheet.cells[column.name]
    place = sort_places(cells) if column.kind == "key" else sign * cells.map(_value).astype("float64")
    return replace(sheet, cells=sheet.cells.loc[place.sort_values(kind="stable").index])


def _front_line(sheet: Sheet, x: Column, y: Column) -> list[str]:
    """A line on the Pareto-optimal rows in ``x`` and ``y``; [] if the better direction of either is unknown or fewer
    than two rows have both."""
    ways = [direction(x.name), direction(y.name)]
    if None in ways or x.kind != y.kind:
        return []
    points = {}
    for number, row in enumerate(sheet.rows):
        cells = dict(zip([column.name for column in sheet.columns], row, strict=True))
        pair = [_value(cells[x.name]), _value(cells[y.name])]
        if None not in pair:
            points[number] = [value if way == "lower" else -value for value, way in zip(pair, ways, strict=True)]
    if len(points) < 2:
        return []
    front = [number for number, own in points.items() if not any(_beats(other, own) for other in points.values())]
    named = [_row_name(sheet, number) for number in front]
    titles = f"{y.head} against {x.head}"
    return [f"{titles}: not beaten in both, by the means: {first_few(named, MAX_ROWS, '; ')}."]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` is as low as ``other`` in both, and lower in one."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def _row_name(sheet: Sheet, number: int) -> str:
    """Name of a row: the values of its keys; for a single run its id."""
    cells = [(cell, column) for cell, column in zip(sheet.rows[number], sheet.columns, strict=True)]
    texts = {column.name: cell_text(cell, column) for cell, column in cells if column.kind == "key"}
    return texts.get("run_id") or " ".join(filter(None, texts.values())) or "all runs"


def _value(cell: Any) -> float | None:
    return cell.mean if isinstance(cell, MeanEstimate) else cell
