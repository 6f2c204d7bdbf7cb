"""The generalization bound beside what it bounds: the gap between held-out and training loss by the number of texts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from knot_runner.records import BOUND_FILE
from knot_runner.report import run_folders
from knot_runner.report.figures import style
from knot_runner.report.render.bound_view import FORM_NAMES
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import lookup
from knot_runner.report.series import band, band_numbers
from knot_runner.report.statistics.association import log_log_slopes
from knot_runner.report.statistics.intervals import MeanEstimate, mean_estimate
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

#: Seed -> number of texts N -> value.
GapSeries = dict[int, dict[int, float]]
#: The series that are measured -> where the record has them.
GAPS = {"gap": "gap", "gap, less the start's": "gap_less_start"}
#: Of Theorem 5.2, and of every bound here.
SLOPE = -0.5
GAP_NOTE = (
    "Gap: mean loss on the transfer set's held-out texts less that on the N it was trained on; points: means over "
    "seeds, bars: 95% t intervals over seeds, which share the held-out texts; the axis begins where a gap is above 0. "
    "Less the start's: without the gap of the model that the student started from, which has seen neither part, so "
    "that it is chance alone. Bounds: what each adds to its first term. last_layer is as if the encoder had been fixed "
    "before."
)


@style.figure_of
def bound_figure(runs: list[Run], command: str) -> style.Drawing:
    """The student's gap between held-out and training loss against the number N of training texts, with intervals over
    seeds, beside what each bound allows; the slope of log gap on log N, which the theorem has at -1/2."""
    found = gap_series(runs, command)
    bands = {name: band(list(one.values())) for name, one in found.items()}
    made, (axes,) = style.panels(1, 8.6, 5.0)
    for i, (name, one) in enumerate(bands.items()):
        look: dict[str, Any] = {"marker": "o", "lw": 2.2} if name in GAPS else {"marker": ".", "lw": 1.2, "ls": "--"}
        bars = one.high - one.mean if name in GAPS else None
        axes.errorbar(one.places, one.mean, yerr=bars, color=style.nth_color(i), capsize=3, label=plain(name), **look)
    diameter = float(_record(runs[0], command)["diameter"])  # above C_M a bound says nothing
    axes.axhline(diameter, color=style.GRAY, lw=0.8, ls=":", label="C_M: no loss is larger")
    axes.set(xlabel="training texts N", ylabel="loss (label distance)")
    style.log_scale(axes, "xy", powers_from=100.0)
    sizes = bands["gap"].places
    axes.set_xticks(sizes, list(map(str, sizes)))
    style.side_legend(made, [axes], loc="outside right center")
    lines = [slope_line(name, found[name]) for name in GAPS]
    numbers = band_numbers(("series", "texts"), {(name,): one for name, one in bands.items()})
    title = f"{runs[0].job.task}: gap and generalization bounds by the number of texts"
    return style.Drawing(made, title, [GAP_NOTE, f"Seeds {style.seed_list(runs)}."], lines, numbers)


def gap_series(runs: Sequence[Run], command: str) -> dict[str, GapSeries]:
    """The gaps, and of every bound what it adds to its first term, by seed and the number of texts.

    Raises :class:`UserError` for runs without a bound, and for a damaged record.
    """
    found: dict[str, GapSeries] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        record, seed = _record(run, command), run.job.seed
        texts = record["texts"]["train"] + record["dropped"]["train"]  # duplicates differ from seed to seed
        for name, key in GAPS.items():
            found[name][seed][texts] = float(record["loss"][key])
        for row in record["rows"]:
            form, of = FORM_NAMES[row["form"]][0], row["class"].replace("held-out", "held out")
            found[f"{form}, {of}"][seed][texts] = float(row["second"] + row["third"])
    return dict(found)


def slope_of(gap: GapSeries) -> MeanEstimate | None:
    """Slope of log gap on log N, the mean over each seed's own slope.

    Of the seeds whose gaps are all above 0, None of none: a gap of 0 or less has no logarithm.
    """
    sizes = sorted(set.intersection(*(set(one) for one in gap.values())))
    rows = np.array([[one[texts] for texts in sizes] for one in gap.values()])
    rows = rows[(rows > 0).all(1)]
    if len(sizes) < 2 or not len(rows):
        return None
    return mean_estimate(log_log_slopes(sizes, rows))


def slope_line(name: str, gap: GapSeries) -> str:
    """The fitted slope of the series ``name`` in words."""
    found = slope_of(gap)
    if found is None:
        return f"slope of log {name} on log N: none; no seed of {len(gap)} has gaps above 0 at every number of texts"
    low, high = found.band
    interval = f" [{low:+.3f}, {high:+.3f}]" if found.half is not None else ""
    left_out = f"; {len(gap) - found.n} of {len(gap)} seeds left out, with a gap of 0 or less"
    slope = f"{found.mean:+.3f}{interval} over {found.n} seeds; the bounds have {SLOPE:+g}"
    return f"slope of log {name} on log N: {slope}" + (left_out if found.n < len(gap) else "")


def _record(run: Run, command: str) -> Facts:
    if lookup(run.result, "bound") is None:
        raise UserError(f"{run.job.task} {run.job.method}: has no bound on record; method.bound=true makes one")
    record: Facts = json.loads(run_folders.kept_file(run, BOUND_FILE, command))
    return record
