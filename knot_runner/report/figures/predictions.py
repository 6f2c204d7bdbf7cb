"""Figures of predicted labels: where the expected label lies, by true class (KNOT Fig. 2)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.figure_style import GREY, PALETTE, figure_of, label_text, panels, save
from knot_runner.report.run_folders import Run
from knot_runner.report.table_model import display
from knot_runner.report.terminal import short_line
from knot_runner.report.text import plain


@functools.partial(figure_of, reads=(run_folders.PREDICTIONS,))
def expected_label(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Box plots of E[p] = sum_l p_l coordinate_l per true class, a box per method (Fig. 2); returns the numbers.

    Labels with more than one coordinate show the distance of E[p] from the truth instead. Predictions are pooled over
    the test sets and seeds.
    """
    labels = runs[0].result["labels"]
    points = np.asarray(labels["coordinates"], dtype=float)
    line = points.shape[1] == 1
    groups = {name: _pooled(members, points, command) for name, members in by_name(runs).items()}
    made, (axes,) = panels(1, max(7.0, 0.42 * len(groups) * len(points) + 3.4), 4.6)
    boxes = [_boxes(axes, groups[name], i, len(groups), points) for i, name in enumerate(groups)]
    truth = points[:, 0] if line else np.zeros(len(points))
    for label, place in enumerate(truth):
        (dashes,) = axes.plot([label - 0.46, label + 0.46], [place, place], ls="--", color=GREY, lw=1.3, zorder=0)
    texts = [label_text(name, "\n") for name in labels["names"]]
    axes.set_xticks(range(len(points)), texts)
    axes.set_xlabel("true label")
    if line:
        axes.set_yticks(points[:, 0], texts)
        axes.set_ylim(points.min() - 0.15, points.max() + 0.15)
        axes.set_ylabel("expected label")
    else:
        axes.set_ylim(bottom=-0.03)
        axes.set_ylabel("distance of expected label from truth")
    handles = [box["boxes"][0] for box in boxes] + [boxes[0]["medians"][0], boxes[0]["means"][0], dashes]
    axes.legend(handles, [*groups, "median", "mean", "truth"], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    sets = sorted({name for run in runs for name in run.result["metrics"].get("sd", {})} - {"ALL"})
    pooled = f"Test sets pooled: {', '.join(sets)}. Boxes: quartiles; whiskers: up to 1.5 box heights."
    kind = "Expected label" if line else "Distance of the expected label from the truth"
    save(made, path, f"{kind} by true label", [pooled, *notes])
    return [row for name, values in groups.items() for row in _numbers(name, values, labels["names"], points)]


def by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under one name: the method, and the settings that set it apart."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.job.method, run.job.label), []).append(run)
    several = len({method for method, _ in groups}) > 1
    brief = (
        short_line if len({short_line(label) for _, label in groups}) == len({label for _, label in groups}) else str
    )
    return {
        plain(" ".join(filter(None, (display(method) if several or not label else "", brief(label))))): members
        for (method, label), members in groups.items()
    }


def _pooled(runs: list[Run], points: np.ndarray, command: str) -> tuple[np.ndarray, np.ndarray]:
    """(values drawn, distance of E[p] from the truth), each with its true label in a second row: [2, N]."""
    values, distances = [], []
    for run in runs:
        for name, (shares, labels) in run_folders.predictions(run, command).items():
            if name.startswith("before/"):
                continue
            expected = shares.astype(float) @ points
            distance = np.linalg.norm(expected - points[labels], axis=1)
            values.append(np.stack([expected[:, 0] if points.shape[1] == 1 else distance, labels]))
            distances.append(np.stack([distance, labels]))
    return np.concatenate(values, axis=1), np.concatenate(distances, axis=1)


def _boxes(axes: Any, pooled: tuple[np.ndarray, np.ndarray], i: int, count: int, points: np.ndarray) -> dict[str, Any]:
    values, labels = pooled[0]
    width = 0.8 / count
    there = [label for label in range(len(points)) if (labels == label).any()]
    places = [label - 0.4 + width * (i + 0.5) for label in there]
    return axes.boxplot(
        [values[labels == label] for label in there],
        positions=places,
        widths=width * 0.82,
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": PALETTE[i % len(PALETTE)], "alpha": 0.75, "edgecolor": GREY},
        medianprops={"color": "#D00000", "lw": 2},
        meanprops={"marker": "D", "markerfacecolor": "black", "markeredgecolor": "white", "markersize": 6},
        whiskerprops={"color": GREY},
        capprops={"color": GREY},
    )


def _numbers(name: str, pooled: tuple[np.ndarray, np.ndarray], names: list[str], points: np.ndarray) -> list[str]:
    rows = []
    apart = []
    for label, text in enumerate(names):
        chosen = pooled[0][0][pooled[0][1] == label]
        if not len(chosen):
            continue
        apart.append(pooled[1][0][pooled[1][1] == label].mean())
        low, middle, high = np.percentile(chosen, (25, 50, 75))
        what = "expected label" if points.shape[1] == 1 else "distance"
        rows.append(f"{name}, {text}: {what} median {middle:.3f} ({low:.3f} to {high:.3f}), mean {chosen.mean():.3f}")
    return [*rows, f"{name}: semantic distance of the pooled predictions {np.mean(apart):.3f}"]
