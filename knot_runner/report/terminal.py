"""A table, and the summary of one run, for the terminal; readable from 80 columns on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.cells import METRICS, Cell, Table, block_title, display
from knot_runner.report.cells import Group as Columns
from knot_runner.report.text import caption, half_text, number, paper_text, plain, value_text

DIM = "dim"


def to_terminal(table: Table) -> TerminalTable:
    """Something ``rich`` prints: one block per metric, the paper's number in brackets below ours."""
    return TerminalTable(table)


class TerminalTable:
    """Lays a table out for the width it is printed at: mean and interval side by side, or below each other."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(plain(self.table.title), style="bold")
        star = "" if console.is_terminal else "*"  # bold does not show in a file
        for groups in self.table.blocks():
            wide = _grid(self.table, groups, star, stacked=False)
            fits = console.measure(wide, options=options.update(max_width=1000)).maximum <= options.max_width
            yield Text("")
            yield Text(block_title(groups), style="italic")
            yield wide if fits else _grid(self.table, groups, star, stacked=True)
        yield Text("")
        yield Text(caption(self.table, f"{star or 'bold'}: best of its column"), style=DIM)
        for line in self.table.lines:
            yield Text(plain(line), style=DIM)


def _grid(table: Table, groups: Sequence[Columns], star: str, stacked: bool) -> Grid:
    """Methods: one head column, settings on its second line. Data sets: a column each for task and name."""
    grid = Grid(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="")
    own_column = len(table.heads) if table.kind == "locals" else 1
    lead = "\n" if any("global" in group.roles for group in groups) else ""  # a line above, to mark the global one
    for head in table.heads[:own_column]:
        grid.add_column(Text(lead + head), no_wrap=not stacked)
    columns = [(group, i) for group in groups for i in range(len(group.columns))]
    for group, i in columns:
        above = "global\n" if group.roles[i] == "global" else lead
        grid.add_column(Text(above + plain(group.heading(i))), justify="right", no_wrap=True)
    for r, row in enumerate(table.rows):
        heads = [Text(plain(head)) for head in row.heads[:own_column]]
        heads[-1].append("".join(f"\n{plain(short(text))}" for text in row.heads[own_column:] if text), style=DIM)
        cells = (_cell(row.cells[g.key][i], g, r in table.best(g, i), star, stacked) for g, i in columns)
        grid.add_row(*heads, *cells)
    return grid


def short(label: str) -> str:
    """Settings without their groups, for a narrow column: ``task.labels.support=onehot`` is ``support=onehot``."""
    parts = [part.partition("=") for part in label.split(", ")]
    return ", ".join(key.rpartition(".")[2] + equals + value for key, equals, value in parts)


def _cell(cell: Cell, group: Columns, best: bool, star: str, stacked: bool) -> Text:
    text = Text(value_text(cell, group.digits) + (star if best else ""), style="bold" if best else "")
    half, paper = half_text(cell, group.digits), paper_text(cell, group.digits)
    if half:
        text.append(("\n" if stacked else "") + half, style="not bold")
    if paper:
        text.append("\n" + paper, style="not bold dim")
    return text


# ------------------------------------------------------------------------------------------------------------- one run


def summary_table(result: dict[str, Any]) -> Group:
    """One run at a glance, from its ``result.json``: each measure per data set, before -> after distillation."""
    name = f"{result['task']} · {display(result['method'])} · seed {result['seed']}"
    if result["status"] == "diverged":
        lines = [Text(plain(f"{name}: diverged, so there are no numbers"), style="bold")]
        return Group(*lines, *_notes(result))
    epoch = result.get("selected_epoch")
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, title_justify="left")
    grid.title = Text(plain(name), style="bold")
    grid.add_column("data set", no_wrap=True)
    measures = [metric for metric in METRICS if metric in result["metrics"]]
    for metric in measures:
        grid.add_column("SD" if metric == "sd" else METRICS[metric][0], justify="right", no_wrap=True)
    names = dict.fromkeys(data for metric in measures for data in result["metrics"][metric] if data != "ALL")
    for data in (*names, "ALL"):
        if data == "ALL":
            grid.add_section()
        role = result["datasets"].get(data, {}).get("role", "")
        title = plain(data) + (" (global)" if role == "global" else "")
        grid.add_row(Text(title), *(_change(result, metric, data) for metric in measures))
    kept = "the weights of epoch 0, the undistilled global model" if epoch == 0 else f"the weights of epoch {epoch}"
    under = [Text("pretrained global model -> after distillation; SD: semantic distance, lower is better", style=DIM)]
    under += [Text(f"kept: {kept}", style=DIM)] if epoch is not None else []
    return Group(grid, *under, *_notes(result))


def _change(result: dict[str, Any], metric: str, dataset: str) -> Text:
    before = result.get("before", {}).get(metric, {}).get(dataset)
    after = result["metrics"][metric].get(dataset)
    text = Text(f"{number(before, 3)} -> " if before is not None else "", style=DIM)
    text.append(number(after, 3) if after is not None else "-", style="not dim bold")
    return text


def _notes(result: dict[str, Any]) -> list[Text]:
    return [Text(plain(str(note)), style=DIM) for note in result.get("notes", [])]
