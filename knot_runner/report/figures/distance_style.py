"""What the two figures of the federated distance share: methods by their names, lines on logarithmic axes, CSV."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.report.figure_style import PALETTE
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Band
from knot_runner.report.terminal import short_line
from knot_runner.report.text import escape_csv, plain
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: As the paper calls them: exact interpolating measures; all samples at one place.
EXACT_MODE, CENTRAL = "FedWaD-e", "WD"
FIXED_COLOURS = {CENTRAL: PALETTE[6], EXACT_MODE: PALETTE[2]}
FREE = [colour for colour in PALETTE if colour not in FIXED_COLOURS.values()]
#: Axes that span less than this have labels between powers of ten, too.
NARROW = 100
#: Settings that a method's name says in its own words.
OF_METHOD = ("method.fedwad.mode", "method.fedwad.support")


def methods_of(runs: Iterable[Run], said: Collection[str] = OF_METHOD) -> dict[str, list[Run]]:
    """``FedWaD-e``, ``FedWaD-a, S=10`` -> its runs by seed; exact mode first, then by the size of the support.

    Swept settings that are not in ``said`` are part of the name. A run that was asked for twice is there once.
    """
    once = {run.job.run_id: run for run in runs}
    found: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(once.values(), key=lambda run: (run.result["mode"] != "exact", _start(run), run.job.seed)):
        others = [part for part in run.job.label.split(", ") if part and part.split("=", 1)[0] not in said]
        name = EXACT_MODE if run.result["mode"] == "exact" else f"FedWaD-a, S={_start(run)}"
        found[plain(", ".join([name, *map(short_line, others)]))].append(run)
    return dict(found)


def _start(run: Run) -> int:
    return run.result["support"][0]


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Name -> colour: those of ``FIXED_COLOURS`` keep theirs in every figure."""
    others = [name for name in names if name not in FIXED_COLOURS]
    return FIXED_COLOURS | {name: FREE[i % len(FREE)] for i, name in enumerate(others)}


def draw_band(axes: Axes, one: Band, colour: str, name: str, marker: str = "") -> None:
    """A line for the mean, and its band; nothing where no seed has a value. Exact mode is dashed, and on top: by
    Theorem 1 it often coincides with another."""
    if len(one.rounds):
        dashes, over = ((0, (3, 2)), 4) if name.startswith(EXACT_MODE) else ("-", 3)
        axes.plot(one.rounds, one.mean, color=colour, lw=1.6, ls=dashes, zorder=over, marker=marker, ms=4)
        axes.fill_between(one.rounds, one.low, one.high, color=colour, alpha=0.15, lw=0)


def log_scale(axes: Axes, which: str) -> None:
    """Logarithmic ``x``, ``y`` or ``xy`` with plain numbers; matplotlib's powers need its math text, which is off."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in which:
        axes.set(**{f"{name}scale": "log"})
        axis = getattr(axes, f"{name}axis")
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(10, (1.0,) if high > NARROW * low else (1.0, 2.0, 5.0), numticks=7))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def side_legend(made: Figure, colours: dict[str, str], names: Iterable[str]) -> None:
    """A line per name, beside the panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colours[n], lw=2, ls="--" if n.startswith(EXACT_MODE) else "-", label=n)
               for n in names]  # fmt: skip
    made.legend(handles=handles, loc="outside right upper")


def seeds_note(runs: Iterable[Run]) -> str:
    """Which seeds the lines are over."""
    seeds = sorted({run.job.seed for run in runs})
    if len(seeds) == 1:
        return f"Seed {seeds[0]}."
    return f"Lines: mean over seeds {', '.join(map(str, seeds))}; bands: lowest to highest."


def csv_rows(names: Sequence[str], one: Band) -> list[list[Any]]:
    """A row of CSV for each place of ``one``: names, place, mean, low, high, seeds."""
    return [
        [*map(escape_csv, names), place, *(f"{value:.6g}" for value in values), one.seeds]
        for place, *values in zip(one.rounds.tolist(), one.mean, one.low, one.high, strict=True)
    ]


def write_csv(path: Path, heads: Sequence[str], rows: list[list[Any]]) -> None:
    """``rows`` beside the PNG ``path``."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[*heads, "mean", "low", "high", "seeds"], *rows])
    write_atomic(path.with_suffix(".csv"), out.getvalue())
