"""A compared table in every form: terminal, Markdown, LaTeX, CSV, Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.compare.settings import KEPT, as_number
from knot_runner.report.compare.sheet import Sheet, frame, printed_rows
from knot_runner.report.text import escape_csv, escape_latex, escape_markdown, plain
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic

DIM_STYLE = "dim"


# ------------------------------------------------------------------------------------------------------------ terminal


class TerminalSheet:
    """Lays a sheet out for the width it is printed at: measures that do not fit go to a block of their own."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def fits(columns: list[_Shown]) -> bool:
            return (
                console.measure(_grid(columns), options=options.update(max_width=10_000)).maximum <= options.max_width
            )

        shown = _shown(self.sheet)
        measures = [one for one in shown if one.measure]
        lead = [one for one in shown if not one.measure]
        if not fits([*lead, *measures[:1]]):
            lead = _joined(self.sheet, lead)
        yield Text(plain(self.sheet.title), style="bold")
        for block in _blocks(lead, measures, fits):
            yield from (Text(""), _grid(block))
        yield Text("")
        for line in self.sheet.lines:
            yield Text(plain(line), style=DIM_STYLE)


@dataclass(frozen=True)
class _Shown:
    """A column as printed; ``wraps``: its cells may go on in a second line."""

    head: str
    cells: list[str]
    right: bool
    measure: bool = False
    wraps: bool = False


def _shown(sheet: Sheet) -> list[_Shown]:
    texts = [[plain(text) for text in row] for row in printed_rows(sheet)]
    return [
        _Shown(
            plain(column.head).replace(".", "\n"),
            [row[i] for row in texts],
            right=column.kind != "key" or _all_numbers([row[i] for row in texts]),
            measure=column.kind in ("measure", "value"),
        )
        for i, column in enumerate(sheet.columns)
    ]


def _joined(sheet: Sheet, lead: list[_Shown]) -> list[_Shown]:
    """Keys but the names of task and method, and the id of a run, as one column of ``key=value``."""
    own, rest = [], []
    for column, one in zip(sheet.columns, lead, strict=False):
        (own if column.kind != "key" or column.name in (*KEPT, "run_id") else rest).append(one)
    heads = [one.head.replace("\n", ".") for one in rest]
    cells = [
        " ".join(f"{head}={value}" for head, value in zip(heads, row, strict=True) if value)
        for row in zip(*(one.cells for one in rest), strict=True)
    ]
    place = next((i for i, one in enumerate(own) if one.right), len(own))
    return [*own[:place], _Shown("settings", cells, right=False, wraps=True), *own[place:]] if rest else own


def _blocks(lead: list[_Shown], measures: list[_Shown], fits: Callable[[list[_Shown]], bool]) -> list[list[_Shown]]:
    """As many measures behind ``lead`` as fit, at least one; the others in further blocks."""
    blocks = [list(lead)]
    for one in measures:
        if len(blocks[-1]) > len(lead) and not fits([*blocks[-1], one]):
            blocks.append(list(lead))
        blocks[-1].append(one)
    return blocks


def _grid(columns: list[_Shown]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=DIM_STYLE)
    for one in columns:
        grid.add_column(
            Text(one.head), justify="right" if one.right else "left", no_wrap=not one.wraps, overflow="fold"
        )
    for row in zip(*(one.cells for one in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _all_numbers(texts: list[str]) -> bool:
    return all(as_number(text) is not None for text in texts if text)


# --------------------------------------------------------------------------------------------------------------- files


def sheet_markdown(sheet: Sheet) -> str:
    """GitHub Markdown: the table, then the lines as a list."""
    rows = [[escape_markdown(column.head) for column in sheet.columns]]
    rows += [[escape_markdown(text) for text in row] for row in printed_rows(sheet)]
    grid = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "".join("---|" if column.kind == "key" else "--:|" for column in sheet.columns)
    under = "\n".join(f"- {escape_markdown(line)}" for line in sheet.lines)
    return "\n\n".join([f"### {escape_markdown(sheet.title)}", "\n".join([grid[0], rule, *grid[1:]]), under]) + "\n"


def sheet_latex(sheet: Sheet) -> str:
    """A ``table`` environment for booktabs, the lines below."""
    layout = "".join("l" if column.kind == "key" else "r" for column in sheet.columns)
    rows = [" & ".join(map(escape_latex, row)) + " \\\\" for row in printed_rows(sheet)]
    heads = " & ".join(escape_latex(column.head) for column in sheet.columns) + " \\\\"
    small = " ".join(map(escape_latex, sheet.lines))
    parts = ["% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}", "\\begin{table}[t]", "\\centering"]
    parts += [f"\\caption{{{escape_latex(sheet.title)}}}", f"\\begin{{tabular}}{{{layout}}}", "\\toprule", heads]
    parts += ["\\midrule", *rows, "\\bottomrule", "\\end{tabular}"]
    parts += [f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {small}\\end{{minipage}}"]
    return "\n".join([*parts, "\\end{table}"]) + "\n"


def sheet_csv(sheet: Sheet) -> str:
    """One line per row, nothing rounded, what is absent empty; no text is a formula to a spreadsheet."""
    columns = frame(sheet)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_csv, columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if v is None else escape_csv(v) if isinstance(v, str) else repr(v) for v in row])
    return out.getvalue()


def to_parquet(sheet: Sheet) -> bytes:
    """The columns of the CSV with their types; title and lines are the schema's metadata. Raises :class:`UserError`."""
    try:
        import pyarrow as pa  # here, since it takes a while to import
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError("--export: Parquet needs pyarrow (pip install pyarrow); .csv needs nothing") from None
    columns = {name: pa.array(values, _arrow_type(values, pa)) for name, values in frame(sheet).items()}
    told = {"title": sheet.title, "lines": "\n".join(sheet.lines)}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns).replace_schema_metadata(told), sink)
    return sink.getvalue().to_pybytes()


def _arrow_type(values: list[str | int | float | None], pa: object) -> object:
    kinds = {type(value) for value in values if value is not None}
    name = "string" if str in kinds else "float64" if float in kinds or not kinds else "int64"
    return getattr(pa, name)()


FORMS: dict[str, Callable[[Sheet], str | bytes]] = {
    "csv": sheet_csv, "md": sheet_markdown, "parquet": to_parquet, "tex": sheet_latex,
}  # fmt: skip


def form_of(path: Path) -> str:
    """The ending of ``path``, one of :data:`FORMS`. Raises :class:`UserError` for another."""
    ending = path.suffix.removeprefix(".")
    if ending not in FORMS:
        raise UserError(f"--export={path}: what form? FILE.csv, .parquet, .tex or .md{nearest(ending, FORMS)}")
    return ending


def write(sheet: Sheet, path: Path) -> None:
    """``sheet`` as ``path``, whole or not at all, in the form of its ending. Raises :class:`UserError`."""
    write_atomic(path, FORMS[form_of(path)](sheet))
