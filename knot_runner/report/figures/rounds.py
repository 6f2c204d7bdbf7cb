"""The figure of accuracy over the rounds of federated runs, by method, and what other figures over rounds share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from knot_runner.config.strict import by_key
from knot_runner.metrics import ACCURACY
from knot_runner.records import ROUNDS_FILE
from knot_runner.report.figures.style import (
    Drawing,
    draw_bands,
    figure_of,
    limit_to_shares,
    nth_color,
    panels,
    seeds_note,
    side_legend,
)
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Run, rounds
from knot_runner.report.run_rows import measured_line
from knot_runner.report.series import band, band_numbers
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A value per round of one run, where there is one; by how many rounds were trained.
Series = dict[int, float]
RoundRows = list[LogRow]


@figure_of(one_task=False, reads=(ROUNDS_FILE,))
def accuracy_by_round(runs: list[Run], command: str) -> Drawing:
    """Accuracy on the test examples after each round: a panel per task, a line per method and further settings.

    Lines are means over seeds, bands are 95% t intervals. The numbers go into a CSV beside the PNG; the last round's
    come back as lines.
    """
    named = by_key(((run.task, f"{run.method} {run.label}".strip()), run) for run in runs)
    accuracy = of_row(ACCURACY, 100)
    found = {names: band([accuracy(rounds(run)) for run in own], top=100.0) for names, own in named.items()}
    tasks = list(dict.fromkeys(task for task, _ in found))
    looks: dict[str, dict[str, Any]] = {}
    for _, name in found:  # dashed, as lines may lie on each other
        looks.setdefault(name, {"color": nth_color(len(looks)), "ls": ("-", "--", ":", "-.")[len(looks) % 4]})
    made, grid = panels(len(tasks), 4.6 if len(tasks) > 1 else 6.4, 3.2, across=2)
    for axes, task in zip(grid, tasks, strict=True):
        draw_bands(axes, {name: one for (own, name), one in found.items() if own == task}, looks)
        label_rounds(axes)
        axes.set(title=plain(task), ylabel="accuracy (%)")
        limit_to_shares(axes, 100.0)
    side_legend(made, {plain(name): look for name, look in looks.items()})
    lines = []
    for (task, name), one in found.items():
        if len(one.places):
            lines.append(f"{task}, {name}: accuracy {one.mean[-1]:.2f}% after {one.places[-1]} rounds")
    notes = [seeds_note(runs), *measured_line(runs)]
    numbers = band_numbers(("task", "method", "round"), found, digits=10, decimals=6)
    return Drawing(made, "Accuracy after each round, by method", notes, lines, numbers)


def of_row(measure: str, scale: float) -> Callable[[RoundRows], Series]:
    return lambda rows: {row["round"]: scale * row[measure] for row in rows if measure in row}


def label_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("rounds trained")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.margins(x=0.01)
