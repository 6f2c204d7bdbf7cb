"""Running time and error of the federated distance against the number of samples (FedWaD Fig. 2, 8, 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from knot_runner.report.figure_style import figure_of, panels, save
from knot_runner.report.figures.distance_style import (
    CENTRAL,
    EXACT_MODE,
    OF_METHOD,
    colours_of,
    csv_rows,
    draw_band,
    log_scale,
    methods_of,
    seeds_note,
    side_legend,
    write_csv,
)
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Band, band
from knot_runner.util.errors import UserError

#: Settings that names of panels, or the axes, say in their own words.
OF_SAMPLES = ("task.samples", "task.ratio", "task.dimension")
QUANTITIES = {"seconds": "seconds", "error": "relative error"}
RUNTIME_NOTE = (
    "WD: network simplex on all samples at one place. FedWaD-e: exact interpolating measures (eq. 5), started with as "
    "many points as the first sample has; FedWaD-a: approximate ones of S points (eq. 10). Error: relative to the "
    "distance of the distributions in closed form, so it is the samples' as well as the method's. n: size of the first "
    "sample; at 1:3 the second is a third of it."
)
#: Quantity -> its mean over seeds, and band, by size of the first sample.
Curves = dict[str, Band]


@figure_of
def distance_runtime(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Seconds, and error relative to the closed form, by the first sample's size: two panels per dimension and ratio
    of the samples (Fig. 2, 8, 9). Returns both at each method's largest size.

    Lines are means over seeds, bands reach from the lowest to the highest. Raises :class:`UserError` where the two
    distributions are one, so that no error is relative.
    """
    if any(run.result["closed_form"] == 0 for run in runs):
        raise UserError("task.offset: 0 leaves no relative error; above 0 would be right")
    cases = {case: _curves(members) for case, members in _cases(runs).items()}
    names = list(dict.fromkeys(name for found in cases.values() for name in found))
    colours = colours_of(names)
    made, grid = panels(2 * len(cases), 3.6, 3.1, across=4 if len(cases) > 1 else 2)
    drawing = [(case, found, what) for case, found in cases.items() for what in QUANTITIES]
    for axes, (case, found, what) in zip(grid, drawing, strict=True):
        for name, of in found.items():
            draw_band(axes, of[what], colours[name], name, marker="o")
        axes.set(xlabel="n", ylabel=QUANTITIES[what])
        axes.set_title(case)
        log_scale(axes, "xy")
    side_legend(made, colours, names)
    save(made, path, "The federated distance: running time and error", [f"{RUNTIME_NOTE} {seeds_note(runs)}", *notes])
    rows = [row for case, found in cases.items() for name, of in found.items() for what, one in of.items()
            for row in csv_rows((case, name, what), one)]  # fmt: skip
    write_csv(path, ("case", "method", "quantity", "n"), rows)
    return [line for case, found in cases.items() for line in _last(case, found)]


def _cases(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """``d=2, ratio 1:3`` -> its runs."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.result["dimension"], run.result["ratio"])):
        found[f"d={run.result['dimension']}, ratio 1:{run.result['ratio']}"].append(run)
    return dict(found)


def _curves(runs: Sequence[Run]) -> dict[str, Curves]:
    """Method -> its curves. The exact distance is measured by every run: its time is the mean over those of a seed."""
    methods = methods_of(runs, (*OF_METHOD, *OF_SAMPLES))
    every = [run for members in methods.values() for run in members]
    central = {CENTRAL: _by_size(every, "exact", "exact")}
    return central | {name: _by_size(members, "federated", "value") for name, members in methods.items()}


def _by_size(runs: Iterable[Run], seconds: str, value: str) -> Curves:
    """``seconds``: key of the record's times; ``value``: key of the distance whose error is asked for."""
    cells: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        error = abs(run.result[value] / run.result["closed_form"] - 1)
        cells[run.job.seed][run.result["samples"][0]].append((run.result["seconds"][seconds], error))
    means = [{size: np.mean(found, axis=0) for size, found in sizes.items()} for sizes in cells.values()]
    return {what: band([{size: float(mean[i]) for size, mean in one.items()} for one in means])
            for i, what in enumerate(QUANTITIES)}  # fmt: skip


def _last(case: str, found: dict[str, Curves]) -> list[str]:
    """Each method's time and error at its largest size, and how many times as long exact mode takes there."""
    exact = found[EXACT_MODE]["seconds"] if EXACT_MODE in found else None
    slow = dict(zip(exact.rounds.tolist(), exact.mean, strict=True)) if exact else {}
    lines = []
    for name, of in found.items():
        if not len(of["seconds"].rounds):
            continue
        size, seconds, error = of["seconds"].rounds[-1], of["seconds"].mean[-1], of["error"].mean[-1]
        line = f"{case}, {name}: n={size:,} in {seconds:.3g} s, relative error {error:.2g}"
        more = size in slow and name != EXACT_MODE
        lines.append(line + (f"; {EXACT_MODE} takes {slow[size] / seconds:.3g} times as long" if more else ""))
    return lines
