"""Trade-off of clients' own models: ID against OOD accuracy, along fine-tuning or a soup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from knot_runner.report.figures import style
from knot_runner.report.figures.output import type_size
from knot_runner.report.row_keys import runs_with
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Numbers

ID_OOD_NOTE = (
    "ID: each client's own model on its own test examples; OOD: on every other client's, all alike; means over clients "
    "and seeds. Star: the model of the last round, which every line begins at; towards the upper right is better."
)


@style.figure_of
def id_ood_figure(runs: list[Run], command: str) -> style.Drawing:
    """ID against OOD accuracy of every measured point, a line per method, means over seeds. The ends of the lines come
    back as lines of text; every point of every seed goes into a CSV."""
    having = runs_with(runs, "personalisation", f"personal models; method=soup or finetune has (made by: {command})")
    groups = style.by_name(having)
    made, (axes,) = style.panels(1, 8.2, 5.0)
    lines, numbers = [], []
    for number, (name, members) in enumerate(groups.items()):
        curve = _curve(members)
        axes.plot(*(100 * curve.T), marker="o", ms=3.5, lw=1.5, color=style.nth_colour(number), label=name)
        end = 100 * curve[-1]
        lines.append(f"{name}: ends at ID {end[1]:.2f}%, OOD {end[0]:.2f}%, from ID {100 * curve[0, 1]:.2f}%")
        numbers += [row for run in members for row in _numbers(name, run)]
    start = 100 * np.mean([_pair(run.result["personalisation"]["start"]) for run in having], axis=0)
    axes.plot(*start, marker="*", ms=type_size(15), color="black", ls="", label="last round", zorder=5)
    axes.margins(0.08)  # the star lies in a corner, whole
    axes.set(xlabel="OOD accuracy (%)", ylabel="ID accuracy (%)")
    style.side_legend(made, [axes], loc="outside right center")
    heads = ("method", "seed", "step", "alpha", "ood_accuracy", "id_accuracy")
    title = f"{runs[0].job.task}: clients' own models in and out of distribution"
    notes = [ID_OOD_NOTE, f"Seeds {style.seed_list(having)}."]
    return style.Drawing(made, title, notes, lines, Numbers(heads, numbers))


def _curve(members: Sequence[Run]) -> np.ndarray:
    """[points + 1, 2] (OOD, ID), the last round's first, then by weight and time; the mean over seeds."""
    curves = []
    for run in members:
        facts = run.result["personalisation"]
        points = sorted(facts["points"], key=lambda point: (point["step"], point["alpha"]))
        curves.append([_pair(facts["start"]), *(_pair(point) for point in points)])
    return np.mean(curves, axis=0)


def _pair(point: dict[str, Any]) -> tuple[float, float]:
    return point["ood_accuracy"], point["id_accuracy"]


def _numbers(name: str, run: Run) -> Iterator[tuple[Any, ...]]:
    for point in run.result["personalisation"]["points"]:
        yield (name, run.job.seed, point["step"], point["alpha"], *_pair(point))
