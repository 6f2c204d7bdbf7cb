"""Figures of the temperature probe: gradient norms, moves of the boundary, one softmax (FLex&Chill Fig. 1-3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report.figures.style import (
    GRAY,
    Drawing,
    by_name,
    draw_boxes,
    figure_of,
    label_text,
    panels,
    plain_tick,
    scale_colors,
    side_legend,
)
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import MeasuredRun, Run, arrays
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRAYS = "probe.safetensors"
BINS = 70
#: Of Fig. 1: smallest norm drawn, as a share of the largest.
MIN_NORM = 1e-5
#: Of Fig. 2: the axis is linear up to here, logarithmic beyond.
LINEAR = 0.01
QUANTILES = ("5%", "25%", "median", "75%", "95%")
PERCENTS = (5, 25, 50, 75, 95)
GRADIENT_NOTE = (
    "Norm of the gradient of CE(z / T, y) for each training image. The paper says 'at the input layer'. Here, this is "
    "the gradient with respect to the weights of the first layer. The first bin includes all smaller norms. The paper "
    "does not state how the model was trained. Here, it is trained centrally at T=1 for method.warm_epochs epochs."
)
BOUNDARY_NOTE = (
    "Distance: smallest epsilon, in normalized pixels, for which image + epsilon * sign(gradient) is classified "
    "differently. It is measured before and after one SGD step on only that image, always from the same weights. The "
    "paper does not specify what counts as a change for a misclassified image (here: any other class), the attack's "
    "loss (here: that of the predicted class), its limit (method.attack_limit) and the rate of the step "
    "(method.step_lr). Boxes: quartiles; whiskers: 5% to 95%. Images "
    "that are not reclassified up to the limit are left out (share at the right). The axis is linear between "
    f"-{LINEAR:g} and {LINEAR:g}, logarithmic beyond."
)
SOFTMAX_NOTE = (
    "softmax(z / T) of one model's logits, for its first misclassified training image of the class (lowest seed); the "
    "paper names neither the image nor the state of the model."
)


@dataclass(frozen=True, eq=False)
class ProbeRecord:
    """Arrays with the names in :func:`knot_runner.papers.chill.probe.probe_part`, with the images of all seeds pooled.

    K temperatures, N images of Fig. 1, M of Fig. 2. ``norm`` [K, N], ``right`` [N]; ``before`` [M], ``after`` [K, M],
    ``put_right`` [K, M]; ``tried``: the number of images that were checked to find M misclassified ones. For the lowest
    seed: ``shares`` [K, C] of an image of class ``label``, row ``row`` of the training images.
    """

    temperatures: list[float]
    norm: np.ndarray
    right: np.ndarray
    before: np.ndarray
    after: np.ndarray
    put_right: np.ndarray
    tried: int
    shares: np.ndarray
    label: int
    row: int


def pool_probes(runs: Sequence[Run]) -> ProbeRecord:
    """Return the pooled records of ``runs``, the seeds of one setting.

    Raises:
        UserError: A file is damaged.
    """
    parts = [arrays(run, ARRAYS) for run in sorted(runs, key=lambda run: run.seed)]
    first = parts[0]
    pooled = {name: np.concatenate([part[name] for part in parts], -1) for name in first}
    return ProbeRecord(
        first["temperatures"].tolist(),
        pooled["gradients.norm"],
        pooled["gradients.right"].astype(bool),
        pooled["boundary.before"],
        pooled["boundary.after"],
        pooled["boundary.right"].astype(bool),
        int(pooled["boundary.tried"].sum()),
        first["softmax.probabilities"],
        int(first["softmax.label"][0]),
        int(first["softmax.row"][0]),
    )


@figure_of(reads=(ARRAYS,))
def gradient_figure(runs: list[Run], command: str) -> Drawing:
    """Histograms of gradient norms by temperature, separately for correct and misclassified images (Fig. 1).

    There is a row of two panels per setting. Quantiles are written to a CSV file next to the PNG. Seeds are pooled.
    """
    probes, colors = _probes(runs)
    made, grid = panels(2 * len(probes), 4.4, 3.2, across=2)
    bins = norm_bins(np.concatenate([probe.norm.ravel() for probe in probes.values()]))
    rows = []
    lines = []
    for axes, (name, text) in zip(grid, itertools.product(probes, ("right", "wrong")), strict=True):
        probe = probes[name]
        chosen = probe.norm[:, probe.right == (text == "right")]
        count = chosen.shape[1]
        axes.set_title(_shown(probes, name, "\n") + f"images classified {text}: {count:,}")
        axes.set(xscale="log", xlim=bins[[0, -1]], xlabel="gradient norm at the input layer", ylabel="share of images")
        axes.xaxis.set_major_formatter(plain_tick)
        for temperature, norms in zip(probe.temperatures, chosen, strict=True) if count else ():
            weights = np.full(count, 1 / count)
            color = colors[temperature]
            axes.hist(norms.clip(bins[0], bins[-1]), list(bins), weights=weights, histtype="step", lw=1.6, color=color)
            quantiles = np.percentile(norms, PERCENTS).tolist()
            rows.append([name, f"{temperature:g}", text, count, *quantiles])
            lines.append(f"{_shown(probes, name)}T={temperature:g}, {text}: median {quantiles[2]:.4g} of {count:,}")
    _legend(made, colors)
    numbers = csv_text(("setting", "temperature", "forward pass", "images", *QUANTILES), rows, digits=4)
    return Drawing(made, "Gradient norms at the input layer by temperature", [GRADIENT_NOTE], lines, numbers)


def norm_bins(norms: np.ndarray) -> np.ndarray:
    """Return the edges of the bins, from just below the smallest norm that is not 0 up to the largest norm.

    The first edge is at least :data:`MIN_NORM` of the largest norm.
    """
    positive = norms[norms > 0]
    if not len(positive):
        return np.linspace(0, 1, BINS)
    top = positive.max()
    return np.geomspace(max(positive.min() / 1.5, top * MIN_NORM), top, BINS)


@figure_of(reads=(ARRAYS,))
def boundary_figure(runs: list[Run], command: str) -> Drawing:
    """Box plots of the distance to the boundary after one step minus the distance before, by temperature (Fig. 2).

    There is a panel per setting. Quantiles are written to a CSV file next to the PNG. Seeds are pooled.

    Raises:
        UserError: No model misclassifies an image.
    """
    probes, colors = _probes(runs)
    if not any(len(probe.before) for probe in probes.values()):
        raise UserError("every image is classified correctly. Use more images", "method.boundary_images")
    width = 6.8 if len(probes) == 1 else 5.2
    made, grid = panels(len(probes), width, 2.0 + 0.42 * len(colors), across=2)
    order = list(colors)  # the hottest on top
    look = {"widths": 0.6, "orientation": "horizontal", "whis": (5, 95), "medianprops": {"color": "black", "lw": 2}}
    rows = []
    lines = []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        wrong = len(probe.before)
        axes.set_title(_shown(probes, name, "\n") + f"{wrong:,} wrong of {probe.tried:,} images")
        for temperature, after, right in zip(probe.temperatures, probe.after, probe.put_right, strict=True):
            both = np.isfinite(probe.before) & np.isfinite(after)
            moves = after[both] - probe.before[both]
            place = order.index(temperature)
            out = wrong - len(moves)
            draw_boxes(axes, [moves], colors[temperature], 0.8, positions=[place], **look)
            share = 0.0
            if wrong:
                share = right.mean()
                beside = axes.get_yaxis_transform()
                axes.text(1.01, place, f"{out / wrong:.0%} left out", transform=beside, va="center", fontsize="small")
            quantiles = [""] * len(QUANTILES)
            median = "no median"
            if len(moves):
                quantiles = np.percentile(moves, PERCENTS).tolist()
                median = f"median {quantiles[2]:.4g}"
            rows.append([name, f"{temperature:g}", len(moves), out, f"{share:.4f}", *quantiles])
            facts = f"{median} over {len(moves):,} images, {out:,} left out; the step corrects {share:.0%}"
            lines.append(f"{_shown(probes, name)}T={temperature:g}: {facts}")
        axes.axvline(0, color=GRAY, ls="--", lw=1, zorder=0)
        axes.set_yticks(range(len(order)), [f"T={temperature:g}" for temperature in order])
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.xaxis.set_major_formatter(plain_tick)
        axes.set_xlabel("change of distance, normalized pixels")
        axes.sharex(grid[0])
    numbers = csv_text(("setting", "temperature", "images", "left out", "right after", *QUANTILES), rows, digits=4)
    title = "Distance to the decision boundary, after minus before one step"
    return Drawing(made, title, [BOUNDARY_NOTE], lines, numbers)


@figure_of(reads=(ARRAYS,))
def softmax_figure(runs: list[MeasuredRun], command: str) -> Drawing:
    """Bars of softmax(z / T) of one image, by class and temperature (Fig. 3).

    There is a panel per setting. The probabilities are written to a CSV file next to the PNG.
    """
    probes, colors = _probes(runs)
    known = runs[0].result.labels.names if runs[0].result.labels else []
    made, grid = panels(len(probes), 9.6, 3.4, across=1)
    rows = []
    lines = []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        places = np.arange(probe.shares.shape[1])
        names = known if len(known) == len(places) else [str(label) for label in places]
        true = names[probe.label]
        width = 0.84 / len(probe.temperatures)
        hottest_first = sorted(zip(probe.temperatures, probe.shares, strict=True), key=lambda pair: -pair[0])
        for i, (temperature, shares) in enumerate(hottest_first):
            axes.bar(places - 0.42 + width * (i + 0.5), shares, width, color=colors[temperature])
            rows += [[name, f"{temperature:g}", text, share] for text, share in zip(names, shares, strict=True)]
            best = shares.argmax()
            facts = f"{plain(names[best])} {shares[best]:.3f}; true {plain(true)} {shares[probe.label]:.3f}"
            lines.append(f"{_shown(probes, name)}T={temperature:g}: {facts}")
        axes.set_title(_shown(probes, name, "\n") + f"training image {probe.row}, class {plain(true)}")
        axes.set(ylabel="probability", ylim=(0, 1))
        axes.set_xticks(places, [label_text(text, "\n") for text in names])
        axes.get_xticklabels()[probe.label].set_fontweight("bold")
    _legend(made, colors)
    numbers = csv_text(("setting", "temperature", "class", "probability"), rows, digits=6)
    return Drawing(made, "Softmax of one image by temperature (true class in bold)", [SOFTMAX_NOTE], lines, numbers)


def _probes(runs: Sequence[Run]) -> tuple[dict[str, ProbeRecord], dict[float, Any]]:
    """Return records by setting, and the colors of their temperatures."""
    probes = {name: pool_probes(members) for name, members in by_name(runs).items()}
    temperatures = sorted({t for probe in probes.values() for t in probe.temperatures})
    return probes, dict(zip(temperatures, scale_colors(temperatures), strict=True))


def _shown(probes: dict[str, ProbeRecord], name: str, gap: str = ", ") -> str:
    """Return the setting's name, as a prefix of lines about it, if there are several settings."""
    return f"{name}{gap}" if len(probes) > 1 else ""


def _legend(made: Figure, colors: dict[float, Any]) -> None:
    side_legend(made, {f"T={t:g}": {"color": colors[t], "lw": 3} for t in sorted(colors, reverse=True)})
