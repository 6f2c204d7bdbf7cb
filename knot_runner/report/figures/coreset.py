"""Figures of coresets: the points as images with the course of the distance (FedWaD Fig. 4, 10, 11), and the accuracy
of the nearest neighbour among all clients' coresets (Fig. 5, 12)."""

from __future__ import annotations

import csv
import functools
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.figure_style import GREY, PALETTE, figure_of, panels, save
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Band, band
from knot_runner.report.text import escape_csv, plain
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Methods that Fig. 5 has beside the coresets, as the paper spells them.
ALGORITHM_NAMES = {"fedavg": "FedAvg", "fedrep_final": "FedRep", "fedper_final": "FedPer"}
OWN_CORESET = "coreset.safetensors"
#: White pixels between images.
GAP = 2
#: Of a panel, in inches: width, and height for each row of images.
PANEL_WIDTH, ROW_HEIGHT = 5.6, 0.62
_COURSE_NOTE = (
    "Right: mean over the participants of the distance between coreset and samples before each step, as the run "
    "itself knows it; FedWaD's is an upper bound. Images are in order of their labels, which are those of the nearest "
    "training samples."
)
NEIGHBOUR_NOTE = (
    "Nearest neighbour: one classifier of all coresets, on all test images. Other methods: each client's own model on "
    "its own test images."
)


@functools.partial(figure_of, one_task=False, reads=(OWN_CORESET,))
def coreset_images(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """One row of images per run, a pair of panels per task and partition (Fig. 4, 10, 11): the coresets, and the
    distance by epoch. The course goes into a CSV beside the PNG; what is left of the distance comes back as lines.

    Raises :class:`UserError` for runs of another kind, and for a damaged file.
    """
    found = _by_case(runs)
    tallest = max(len(rows) for rows in found.values())
    made, grid = panels(
        2 * len(found), PANEL_WIDTH, max(2.4, ROW_HEIGHT * tallest + 1.2), across=2, width_ratios=[3, 2]
    )
    for i, (case, rows) in enumerate(found.items()):
        pictures = {name: _strip(run, command) for name, run in rows.items()}
        _draw_images(grid[2 * i], pictures, case)
        _draw_course(grid[2 * i + 1], rows)
    save(made, path, "Wasserstein coresets", [_COURSE_NOTE, *notes])
    write_atomic(path.with_suffix(".csv"), _course_csv(found))
    return [
        f"{case}, {name}: distance to all clients' samples {run.result['metrics']['distance']['ALL']:.4g}, "
        f"{run.result['classes_covered']} of {len(run.result['labels']['names'])} classes"
        for case, rows in found.items()
        for name, run in rows.items()
    ]


@figure_of
def coreset_accuracy(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Accuracy on the test images against the number of clients, a line per size of coreset and per other method
    (Fig. 5, 12). Bands reach from the lowest to the highest seed; the numbers are in a CSV beside the PNG."""
    found = _by_method(runs)
    made, (axes,) = panels(1, 8.6, 4.4)
    for i, (name, one) in enumerate(found.items()):
        colour = PALETTE[i % len(PALETTE)]
        axes.plot(one.rounds, one.mean, color=colour, marker="o", ms=4, lw=1.6, label=plain(name))
        axes.fill_between(one.rounds, one.low, one.high, color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("clients")
    axes.set_ylabel("accuracy (%)")
    axes.set_xticks(sorted({run.result["clients"] for run in runs}))
    made.legend(loc="outside right center")
    seeds = sorted({run.job.seed for run in runs})
    said = f"Means over seeds {', '.join(map(str, seeds))}; bands: lowest to highest." if len(seeds) > 1 else ""
    title = f"{runs[0].job.task}: classification by the clients' coresets"
    save(made, path, title, [*filter(None, [NEIGHBOUR_NOTE, said]), *notes])
    write_atomic(path.with_suffix(".csv"), _accuracy_csv(found))
    return [
        f"{name}, {number} clients: accuracy {mean:.2f}%"
        for name, one in found.items()
        for number, mean in zip(one.rounds, one.mean, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------- which is which


def _by_case(runs: Sequence[Run]) -> dict[str, dict[str, Run]]:
    """Panel (task and partition) -> row (distance, points, seed) -> run; exact first, then by the support."""
    made: dict[str, dict[str, Run]] = defaultdict(dict)
    seeds = {run.job.seed for run in runs}
    for run in sorted(runs, key=_order):
        if run.result.get("kind") != "coreset":
            raise UserError(f"{run.job.task} {run.job.method}: is not a coreset, so it has no images to show")
        seed = f", seed {run.job.seed}" if len(seeds) > 1 else ""
        made[_case(run)].setdefault(_row(run) + seed, run)
    return dict(made)


def _order(run: Run) -> tuple[Any, ...]:
    exact = run.result.get("distance") == "exact"
    return not exact, lookup(run.job.config, "method.fedwad.support") or 0, run.job.seed


def _case(run: Run) -> str:
    """``mnist, 100 clients by shards (shards per client 2)``."""
    partition = run.job.config.get("partition", {})
    told = {key: value for key, value in partition.items() if key not in ("kind", "clients", "groups")}
    extra = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in told.items())
    by = f"{run.result['clients']} clients by {partition.get('kind')}" + (f" ({extra})" if extra else "")
    return f"{run.job.task}, {by}"


def _row(run: Run) -> str:
    method = run.job.config["method"]
    encoder = f", {lookup(method, 'encoder.name')}" if method.get("encoder") else ""
    if run.result["distance"] == "exact":
        return "exact" + encoder
    return f"FedWaD, S={lookup(method, 'fedwad.support')}" + encoder


def _by_method(runs: Sequence[Run]) -> dict[str, Band]:
    """``nearest neighbour, 10 points`` (or a method's name) -> its accuracy in % over the numbers of clients."""
    series: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        accuracy = run.metric("accuracy", "ALL")
        if accuracy is None or "clients" not in run.result:
            raise UserError(f"{run.job.task} {run.job.method}: has no accuracy of clients to show")
        series[_method(run)][run.job.seed][run.result["clients"]] = 100 * accuracy
    return {name: band(list(seeds.values())) for name, seeds in sorted(series.items(), key=_by_size)}


def _by_size(item: tuple[str, Any]) -> tuple[bool, int]:
    """Coresets by their size, then other methods."""
    digits = "".join(letter for letter in item[0] if letter.isdigit())
    return not item[0].startswith("nearest"), int(digits or 0)


def _method(run: Run) -> str:
    if run.result["kind"] != "knn":
        return ALGORITHM_NAMES.get(run.job.method, run.job.method)
    exact = " (exact distance)" if run.result["distance"] == "exact" else ""
    return f"nearest neighbour, {run.result['points']} points{exact}"


# ------------------------------------------------------------------------------------------------------- drawing


def _strip(run: Run, command: str) -> np.ndarray:
    """One run's coreset as one row of images [H, K * (W + gap), C], in order of their labels."""
    path = run.job.folder / OWN_CORESET
    kept = run_folders.arrays(run, OWN_CORESET, command)
    channels, height, width = run.result["shape"]
    points, labels = kept.get("points"), kept.get("labels")
    count = run.result["points"]
    if points is None or labels is None or points.shape != (count, channels * height * width):
        run_folders.damaged(path, command)
    if labels.shape != (count,) or not np.isfinite(points).all():
        run_folders.damaged(path, command)
    images = points[np.argsort(labels, kind="stable")].reshape(count, channels, height, width)
    padded = np.pad(images.transpose(0, 2, 3, 1), ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=1.0)
    return np.concatenate(list(padded), axis=1)


def _draw_images(axes: Axes, pictures: dict[str, np.ndarray], title: str) -> None:
    longest = max(strip.shape[1] for strip in pictures.values())
    rows = [np.pad(s, ((0, 0), (0, longest - s.shape[1]), (0, 0)), constant_values=1.0) for s in pictures.values()]
    whole = np.concatenate(rows)
    axes.imshow(whole[..., 0] if whole.shape[2] == 1 else whole, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    height = rows[0].shape[0]
    axes.set_yticks([height * (i + 0.5) for i in range(len(rows))], [plain(name) for name in pictures])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(plain(title), fontsize=10)


def _draw_course(axes: Axes, rows: dict[str, Run]) -> None:
    for i, (name, run) in enumerate(rows.items()):
        colour = GREY if name.startswith("exact") else PALETTE[i % len(PALETTE)]
        axes.plot(run.result["losses"], color=colour, lw=1.2, label=plain(name))
    axes.set_xlabel("epoch")
    axes.set_ylabel("distance")
    axes.margins(x=0.01)
    axes.legend(fontsize=8)


# ------------------------------------------------------------------------------------------------------- numbers


def _course_csv(found: dict[str, dict[str, Run]]) -> str:
    rows = [
        (case, name, epoch, f"{loss:.8g}")
        for case, members in found.items()
        for name, run in members.items()
        for epoch, loss in enumerate(run.result["losses"])
    ]
    return _csv(("case", "coreset", "epoch", "distance"), rows)


def _accuracy_csv(found: dict[str, Band]) -> str:
    rows = [
        (name, number, *(f"{value:.6g}" for value in values), one.seeds)
        for name, one in found.items()
        for number, *values in zip(one.rounds, one.mean, one.low, one.high, strict=True)
    ]
    return _csv(("method", "clients", "mean", "low", "high", "seeds"), rows)


def _csv(heads: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([escape_csv(value) if isinstance(value, str) else value for value in row] for row in rows)
    return out.getvalue()
