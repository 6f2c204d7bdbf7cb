"""Results of ``reproduce``: one row per preset, for the terminal and as Markdown for a README, and the time of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from knot_runner.cli.candidate import Candidate
from knot_runner.records import read_result, read_sealed, write_sealed
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.render.text import duration, escape_markdown, plain
from knot_runner.util.config_yaml import config_folder
from knot_runner.util.files import write_atomic

#: Files below ``paths.out``.
TABLE_FILE, TIMES_FILE = "reproduced.md", "reproduced.json"
HEADS = ("preset", "data", "seeds", "hold", "fail", "undecided", "time")
#: The guide to all presets, as README links to it.
GUIDE = "conf/experiment/README.md"


@dataclass(frozen=True)
class PresetRow:
    """Cells of a preset with finished runs, in the order of :data:`HEADS`; ``left`` of its ``runs`` are missing."""

    cells: tuple[str, ...]
    link: str
    left: int
    runs: int


def preset_row(one: Candidate, spent: float) -> PresetRow | None:
    """The row of a preset that took ``spent`` seconds; None if no run is finished. Raises :class:`UserError`."""
    results = [result for folder in one.folders if (result := read_result(folder))]
    if not results:
        return None
    verdicts = one.verdicts()
    count = Counter(verdict.verdict for verdict in verdicts)
    others = {"without runs": count["no runs"], "refused": count["refused"]}
    without = "".join(f" + {number} {what}" for what, number in others.items() if number)
    cells = (
        one.name, data_text(results), one.seeds(), str(count["holds"]), str(count["does not hold"]),
        f"{count['undecided']}{without}" if verdicts else "no claims", duration(spent) if spent else "-",
    )  # fmt: skip
    return PresetRow(cells, guide_link(one.name), one.left(), len(one.folders))


def data_text(results: Sequence[dict[str, Any]]) -> str:
    """The data of runs: tasks, their sources and the largest number of examples of a run."""
    sizes: dict[str, tuple[int, int]] = {}
    for result in results:
        name = f"{result['task']} ({result['source']})" if result.get("source") else result["task"]
        train, test = _examples(result.get("datasets") or {})
        before = sizes.get(name, (0, 0))
        sizes[name] = max(before[0], train), max(before[1], test)
    return "; ".join(_sized(name, *size) for name, size in sizes.items())


def _sized(name: str, train: int, test: int) -> str:
    return f"{name}: {train:,} training, {test:,} test" if train or test else name


def _examples(datasets: dict[str, Any]) -> tuple[int, int]:
    """Numbers of training and test examples of a result's ``datasets``, summed over its parties if there are
    several."""
    tables = [one for one in datasets.values() if isinstance(one, dict)] or [datasets]
    train, test = (sum(int(table.get(split) or 0) for table in tables) for split in ("train", "test"))
    return train, test


def guide_link(preset: str) -> str:
    """Link to the section of the presets' guide with the row of ``preset``; to the guide itself if it has none."""
    path = config_folder() / "experiment" / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, row, _ = text.partition(f"\n| `{preset}` |")
    titles = re.findall(r"^#+ (.*)$", before, flags=re.M) if row else []
    return f"{GUIDE}#{re.sub(r'[^a-z0-9 -]', '', titles[-1].lower()).replace(' ', '-')}" if titles else GUIDE


# --------------------------------------------------------------------------------------------------------------- forms


def results_markdown(rows: Sequence[PresetRow], lines: Sequence[str]) -> str:
    """The table as GitHub Markdown, with links relative to README."""
    parts = [f"| {' | '.join(HEADS)} |", "|---|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        name, *cells = map(escape_markdown, row.cells)
        parts.append(f"| [{name}]({row.link}) | {' | '.join(cells)} |")
    notes = "".join(f"- {escape_markdown(line)}\n" for line in (*partial_lines(rows), *lines))
    return "\n".join(parts) + "\n" + (f"\n{notes}" if notes else "")


def partial_lines(rows: Sequence[PresetRow]) -> list[str]:
    """One line per preset with missing runs."""
    return [f"{row.cells[0]}: partial, {row.runs - row.left} of {row.runs} runs" for row in rows if row.left]


def results_table(rows: Sequence[PresetRow]) -> Table:
    """The table for the terminal, with the data below each preset's name so that 60 columns suffice."""
    columns = [TerminalColumn(", ".join(HEADS[:2]), overflow="fold")]
    for head in HEADS[2:]:
        columns.append(TerminalColumn(head, right=True, no_wrap=head in ("hold", "fail"), overflow="fold"))
    shown = []
    for row in rows:
        name, data, *cells = row.cells
        shown.append((text_line(name).append(f"\n  {plain(data)}", style=DIM), *cells))
    return results_grid(columns, shown, padding=(0, 1, 0, 0))


def write_results(out: Path, rows: Sequence[PresetRow], lines: Sequence[str]) -> Path:
    """Write the Markdown below ``out``; returns its path. Raises :class:`UserError`."""
    write_atomic(out / TABLE_FILE, results_markdown(rows, lines))
    return out / TABLE_FILE


# --------------------------------------------------------------------------------------------------------------- times


def read_times(out: Path) -> dict[str, float]:
    """Candidate key -> seconds its runs took over all calls; {} if the record is missing or damaged."""
    times = (read_sealed(out / TIMES_FILE) or {}).get("seconds")
    return dict(times) if isinstance(times, dict) else {}


def write_times(out: Path, times: dict[str, float]) -> None:
    """Write the record that :func:`read_times` reads. Raises :class:`UserError`."""
    write_sealed(out / TIMES_FILE, {"seconds": times})
