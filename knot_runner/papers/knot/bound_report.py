"""The generalization bound of a run as a terminal table, and its figure.

The figure compares the bound with the quantity that it bounds: the gap between held-out and training loss, by number of
training texts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group

from knot_runner.records import BOUND_FILE
from knot_runner.report.figures.style import (
    GRAY,
    Drawing,
    figure_of,
    log_scale,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Run, kept_file, lookup
from knot_runner.report.series import band_numbers, bands_of
from knot_runner.report.statistics.intervals import Estimate, mean_estimate
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

#: Points (names of the series, seed, number of texts N, value).
GapSeries = list[tuple[tuple[str], int, int, float]]
#: Name of a measured series -> its key in the record.
GAPS = {"gap": "gap", "gap, less the start's": "gap_less_start"}
#: Slope of every bound in a log-log plot.
SLOPE = -0.5
GAP_NOTE = (
    "Gap: mean loss on the transfer set's held-out texts minus that on the N training texts. Points: means over seeds; "
    "bars: 95% t intervals over seeds, which share the held-out texts. The axis begins where a gap is above 0. "
    "Less the start's: minus the gap of the student's initial model, which was trained on neither part. "
    "Bounds: without their first term. last_layer assumes an encoder that was fixed in advance."
)


@figure_of
def bound_figure(runs: list[Run]) -> Drawing:
    """The student's gap between held-out and training loss against the number N of training texts.

    The gap has 95% intervals over seeds. Next to it, the figure shows the terms that each bound adds to the training
    loss. The returned lines give the slope of log gap against log N, which is -1/2 in the theorem.
    """
    series = gap_series(runs)
    bands = bands_of(itertools.chain(*series.values()))
    figure, (axes,) = panels(1, 8.6, 5.0)
    for i, ((name,), curve) in enumerate(bands.items()):
        look: dict[str, Any] = {"marker": ".", "lw": 1.2, "ls": "--"}
        if name in GAPS:
            look = {"marker": "o", "lw": 2.2, "yerr": curve.high - curve.mean}
        axes.errorbar(curve.places, curve.mean, color=nth_color(i), capsize=3, label=plain(name), **look)
    diameter = float(_record(runs[0])["diameter"])  # above C_M a bound says nothing
    axes.axhline(diameter, color=GRAY, lw=0.8, ls=":", label="C_M: no loss is larger")
    axes.set(xlabel="training texts N", ylabel="loss (label distance)")
    log_scale(axes, "xy", powers_from=100.0)
    sizes = bands["gap",].places
    axes.set_xticks(sizes, list(map(str, sizes)))
    side_legend(figure, [axes], loc="outside right center")
    title = f"{runs[0].task}: gap and generalization bounds by the number of texts"
    lines = [slope_line(name, series[name]) for name in GAPS]
    numbers = band_numbers(("series", "texts"), bands)
    return Drawing(figure, title, [GAP_NOTE, f"Seeds {seed_list(runs)}."], lines, numbers)


def gap_series(runs: Sequence[Run]) -> dict[str, GapSeries]:
    """Return the gaps, and the terms that each bound adds to the training loss, by seed and number of texts.

    Raises:
        UserError: A run has no bound, or a record is damaged.
    """
    series: dict[str, GapSeries] = {}
    for run in runs:
        record = _record(run)
        texts = record["texts"]["train"] + record["dropped"]["train"]  # duplicates differ from seed to seed
        values = {name: float(record["loss"][key]) for name, key in GAPS.items()}
        for row in record["rows"]:
            form = FORM_NAMES[row["form"]][0]
            function_class = row["class"].replace("held-out", "held out")
            values[f"{form}, {function_class}"] = float(row["second"] + row["third"])
        for name, value in values.items():
            series.setdefault(name, []).append(((name,), run.seed, texts, value))
    return series


def slope_of(gap: GapSeries) -> Estimate | None:
    """Return the slope of log gap against log N, averaged over seeds.

    Seeds with a gap of 0 or less are excluded, because the logarithm is undefined. None if no seed remains.
    """
    import pandas as pd

    points = pd.DataFrame(gap, columns=["name", "seed", "texts", "value"])
    by_size = points.pivot_table("value", "texts", "seed").dropna()  # [sizes of all seeds, seeds]
    rows = by_size.to_numpy().T
    rows = rows[(rows > 0).all(1)]
    if len(by_size) < 2 or not len(rows):
        return None
    return mean_estimate(np.polyfit(np.log(by_size.index), np.log(rows).T, 1)[0].tolist())


def slope_line(name: str, gap: GapSeries) -> str:
    """Return a line that reports the fitted slope of the series ``name``."""
    slope = slope_of(gap)
    seeds = len({seed for _, seed, _, _ in gap})
    head = f"slope of log {name} on log N"
    if slope is None:
        return f"{head}: none; no seed of {seeds} has gaps above 0 at every number of texts"
    low, high = slope.band
    interval = f" [{low:+.3f}, {high:+.3f}]" if slope.half is not None else ""
    line = f"{head}: {slope.mean:+.3f}{interval} over {slope.n} seeds; the bounds have {SLOPE:+g}"
    if slope.n < seeds:
        line += f"; {seeds - slope.n} of {seeds} seeds left out, with a gap of 0 or less"
    return line


def _record(run: Run) -> Facts:
    if lookup(run.result, "bound") is None:
        raise UserError(f"task={run.task} method={run.method}: has no bound. Rerun it with method.bound=true")
    record: Facts = json.loads(kept_file(run, BOUND_FILE))
    return record


# ------------------------------------------------------------------------------------------------------- terminal view


#: Form of a bound -> its heading and description.
FORM_NAMES = {
    "printed": (
        "printed",
        "Theorem 5.2 as printed; first: the student's training loss, at least the smallest one of its class",
    ),
    "derived": ("derived", "from the paper's lemmas (Frogner et al. 2015); first: its held-out loss, an estimate"),
    "sharp": ("sharp", "ours, with the loss's Lipschitz constant; first: the training loss; for any student"),
    "sharp_empirical": ("sharp, R^", "the same, with the empirical complexity of these texts"),
    "hoeffding": ("Hoeffding", "on held-out texts; requires no function class"),
    "bernstein": ("Bernstein", "the same, with the variance of the loss"),
}
CLASS_NOTE = (
    "last_layer: assumes that the encoder and B were fixed in advance (a union over values of B "
    "adds the logarithm of their number to log(1/delta)), so this is no guarantee for KNOT."
)
#: Columns of numbers.
NUMBER_HEADS = ("first", "second", "third", "sum")
VACUOUS_WORDS = {"C_M": "no loss is larger", "constant": "not better than a constant"}


def bound_table(title: str, record: Facts) -> Group:
    """Return a table of ``record``, the content of ``bound.json``, with footnotes."""
    columns = [TerminalColumn(head, no_wrap=True) for head in ("bound", "class")]
    columns += [TerminalColumn(head, right=True, no_wrap=True) for head in NUMBER_HEADS]
    rows = []
    for row in record["rows"]:
        numbers = (f"{row[name]:.4g}" for name in NUMBER_HEADS)
        vacuous = "; ".join(VACUOUS_WORDS[why] for why in row["vacuous"]) or "no"
        rows.append((FORM_NAMES[row["form"]][0], row["class"], *numbers, vacuous))
    grid = results_grid([*columns, TerminalColumn("vacuous?")], rows)
    return Group(text_line(title, "bold"), grid, *(text_line(text, DIM) for text in bound_lines(record)))


def bound_lines(record: Facts) -> list[str]:
    """Return the footnotes for a bound's table."""
    loss = record["loss"]
    texts = record["texts"]
    dropped = record["dropped"]
    headings = dict.fromkeys(FORM_NAMES[row["form"]] for row in record["rows"])
    return [
        f"Loss of the student (1-Wasserstein to its teachers): {loss['train']:.4g} on {texts['train']} training "
        f"texts, {loss['valid']:.4g} on {texts['valid']} held out, gap {loss['gap']:.4g}. Gap minus that of "
        f"the initial model: {loss['gap_less_start']:.4g}. Loss of the best constant prediction: "
        f"{loss['constant']:.4g}.",
        f"Duplicates left out: {dropped['train']} training texts, {dropped['valid']} held-out texts (including those "
        "that are also training texts).",
        f"C_M = {record['diameter']:.4g}, {record['classes']} labels, delta = {record['delta']:g}; held-out "
        f"bounds over {record['checkpoints']} checkpoints.",
        *(f"{head}: {about}." for head, about in headings),
        *(_complexity_line(facts) for facts in record["complexity"].values()),
        *(f"{name}: no number: {why}." for name, why in record["undeclared"].items()),
        *(f"{note}." for note in record["notes"]),
    ]  # fmt: skip


def _complexity_line(facts: dict[str, float]) -> str:
    return (
        f"{CLASS_NOTE} R^ = {facts['value']:.4g} +- {facts['error']:.4g} (Monte Carlo), at most "
        f"{facts['upper']:.4g}; B = {facts['norm']:.4g}."
    )
