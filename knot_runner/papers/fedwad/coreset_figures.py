"""Figure of coresets: the points as images, and the distance by epoch (FedWaD Fig. 4, 10, 11)."""

from __future__ import annotations

import numpy as np

from knot_runner.papers.fedwad.results import CoresetResult
from knot_runner.report.figures.style import GRAY, Drawing, figure_of, nth_color, panels, seed_list
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.text import plain, short_line
from knot_runner.report.run_folders import DoneRun, arrays
from knot_runner.report.run_rows import others
from knot_runner.util.errors import UserError

CoresetRun = DoneRun[CoresetResult]
OWN_CORESET = "coreset.safetensors"
#: Settings that are part of the name of a row of images.
_NAMED = ("method.distance", "method.fedwad.support")
#: Number of white pixels between images.
GAP = 2
#: Width of a panel, and height of a row of images, in inches.
PANEL_WIDTH = 5.6
ROW_HEIGHT = 0.62
DESCENT_NOTE = (
    "Right: mean over the participants of the distance between coreset and samples before each step, as the run "
    "itself knows it; FedWaD's is an upper bound. Images are in order of their labels, which are those of the nearest "
    "training samples."
)


@figure_of(one_task=False, reads=(OWN_CORESET,), needs="classes_covered")
def coreset_images(runs: list[CoresetRun]) -> Drawing:
    """Coresets as images, and the distance between coreset and samples by epoch (Fig. 4, 10, 11).

    Each combination of task and settings has two panels. The left panel has a row of images for each run, and the right
    panel has a distance curve for each run. These distances are written to a CSV file. The returned text states the
    distance between each run's final coreset and all clients' samples.

    Raises:
        UserError: The points are text features, or a file is damaged.
    """
    cases = _by_case(runs)
    height = max(2.4, ROW_HEIGHT * max(map(len, cases.values())) + 1.2)
    figure, grid = panels(2 * len(cases), PANEL_WIDTH, height, across=2, width_ratios=[3, 2])
    lines = []
    rows = []
    for images, course, (case, members) in zip(grid[::2], grid[1::2], cases.items(), strict=True):
        strips = [_strip(run) for run in members.values()]
        images.imshow(np.concatenate(strips), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        images.set_yticks(len(strips[0]) * (np.arange(len(strips)) + 0.5), list(map(plain, members)))
        images.set_xticks([])
        images.spines[:].set_visible(False)
        images.tick_params(length=0)
        images.set_title(plain(case), fontsize="small")
        for i, (name, run) in enumerate(members.items()):
            result = run.result
            color = GRAY if name.startswith("exact") else nth_color(i)
            course.plot(result.losses, color=color, lw=1.2, label=plain(name))
            for epoch, loss in enumerate(result.losses):
                rows.append((case, name, epoch, loss))
            covered = f"{result.classes_covered} of {len(result.labels.names)} classes"
            left = run.metric("distance", "ALL")
            lines.append(f"{case}, {name}: distance to all clients' samples {left:.4g}, {covered}")
        course.set(xlabel="epoch", ylabel="distance")
        course.margins(x=0.01)
        course.legend(fontsize="small")
    numbers = csv_text(("case", "coreset", "epoch", "distance"), rows, digits=8)
    return Drawing(figure, "Wasserstein coresets", [DESCENT_NOTE], lines, numbers)


def _by_case(runs: list[CoresetRun]) -> dict[str, dict[str, CoresetRun]]:
    """Return a dict from panel (task and differing settings) to a dict from row (distance, points, seed) to run."""
    cases: dict[str, dict[str, CoresetRun]] = {}
    for run, other in zip(runs, others(runs, _NAMED), strict=True):
        if len(run.result.shape) != 3:
            raise UserError(f"task={run.task} method={run.method}: the points are text features, which cannot be drawn")
        row = "exact" if run.result.distance == "exact" else f"FedWaD, S={run.setting('method.fedwad.support')}"
        if "," in seed_list(runs):
            row += f", seed {run.seed}"
        cases.setdefault(f"{run.task}, {short_line(other)}".removesuffix(", "), {}).setdefault(row, run)
    return cases


def _strip(run: CoresetRun) -> np.ndarray:
    """Return a run's K coreset images side by side, sorted by label: one image of shape [H, K * (W + gap), C]."""
    kept = arrays(run, OWN_CORESET)
    (channels, height, width), count = run.result.shape, run.result.points
    images = kept["points"][np.argsort(kept["labels"], kind="stable")].reshape(count, channels, height, width)
    padded = np.pad(images.transpose(0, 2, 3, 1), ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=1.0)
    return np.concatenate(list(padded), axis=1)
