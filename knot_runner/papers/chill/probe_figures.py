"""Figures of the temperature probe: gradient norms, boundary shifts, softmax probabilities (FLex&Chill Fig. 1-3)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.papers.chill.results import ProbeResult
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
from knot_runner.report.run_folders import DoneRun, Run, arrays
from knot_runner.report.run_rows import ranks
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRAYS = "probe.safetensors"
#: The arrays of :func:`knot_runner.papers.chill.probe.probe_part`, concatenated over seeds; ``gradients.norm`` is named
#: ``gradients_norm``.
Probe = SimpleNamespace
BINS = 70
#: Smallest norm drawn in Fig. 1, as a share of the largest norm.
MIN_NORM = 1e-5
#: Absolute value up to which the axis of Fig. 2 is linear. For larger values, the axis is logarithmic.
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
    "paper does not specify what counts as a change for a misclassified image (here: any other class) or the attack's "
    "loss (here: that of the predicted class). Its limit (method.attack_limit) and the learning rate of the step "
    "(method.step_lr) are also ours. Boxes: quartiles; whiskers: 5% to 95%. Images that "
    "are not reclassified up to the limit are left out (share at the right). The axis is linear between "
    f"-{LINEAR:g} and {LINEAR:g}, logarithmic beyond."
)
SOFTMAX_NOTE = (
    "softmax(z / T) of one model's logits, for its first misclassified training image of the class (lowest seed); the "
    "paper names neither the image nor the state of the model."
)


@figure_of(reads=(ARRAYS,))
def gradient_figure(runs: list[Run]) -> Drawing:
    """Histograms of gradient norms by temperature, separately for correctly and wrongly classified images (Fig. 1).

    Runs that differ only in the seed are pooled in one row of two panels. Quantiles are written to a CSV file.
    """
    probes, colors = _probes(runs)
    figure, grid = panels(2 * len(probes), 4.4, 3.2, across=2)
    bins = norm_bins(np.concatenate([probe.gradients_norm.ravel() for probe in probes.values()]))
    rows = []
    lines = []
    for axes, (name, text) in zip(grid, itertools.product(probes, ("right", "wrong")), strict=True):
        probe = probes[name]
        chosen = probe.gradients_norm[:, probe.gradients_right == (text == "right")]
        count = chosen.shape[1]
        title = f"{name}\nimages classified {text}: {count:,}"
        axes.set(title=title, xlabel="gradient norm at the input layer", ylabel="share of images")
        axes.set(xscale="log", xlim=bins[[0, -1]])
        axes.xaxis.set_major_formatter(plain_tick)
        for temperature, norms in zip(probe.temperatures, chosen, strict=True):
            if not count:
                continue
            look = {"weights": np.full(count, 1 / count), "color": colors[temperature], "histtype": "step", "lw": 1.6}
            axes.hist(norms.clip(bins[0], bins[-1]), list(bins), **look)
            quantiles = np.percentile(norms, PERCENTS).tolist()
            rows.append([name, f"{temperature:g}", text, count, *quantiles])
            lines.append(f"{name}, T={temperature:g}, {text}: median {quantiles[2]:.4g} of {count:,}")
    _legend(figure, colors)
    numbers = csv_text(("setting", "temperature", "forward pass", "images", *QUANTILES), rows, digits=4)
    return Drawing(figure, "Gradient norms at the input layer by temperature", [GRADIENT_NOTE], lines, numbers)


def norm_bins(norms: np.ndarray) -> np.ndarray:
    """Return logarithmic bin edges for the positive ``norms``. The last edge is the largest norm.

    The first edge is slightly below the smallest norm, but at least :data:`MIN_NORM` times the largest norm.
    """
    positive = norms[norms > 0]
    if not len(positive):
        return np.linspace(0, 1, BINS)
    top = positive.max()
    return np.geomspace(max(positive.min() / 1.5, top * MIN_NORM), top, BINS)


@figure_of(reads=(ARRAYS,))
def boundary_figure(runs: list[Run]) -> Drawing:
    """Change in distance to the decision boundary after one training step, as box plots by temperature (Fig. 2).

    Runs that differ only in the seed are pooled in one panel. Quantiles are written to a CSV file.

    Raises:
        UserError: No model misclassifies an image, so there is nothing to draw.
    """
    probes, colors = _probes(runs)
    if not any(len(probe.boundary_before) for probe in probes.values()):
        raise UserError(
            "the figure needs misclassified images, but all images are classified correctly. Use more images",
            "method.boundary_images",
        )
    figure, grid = panels(len(probes), 5.2, 2.0 + 0.42 * len(colors), across=2)
    heights = ranks(colors)  # highest temperature on top
    look = {"widths": 0.6, "orientation": "horizontal", "whis": (5, 95), "medianprops": {"color": "black", "lw": 2}}
    rows = []
    lines = []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        before = probe.boundary_before
        wrong = len(before)
        steps = zip(probe.temperatures, probe.boundary_after, probe.boundary_right, strict=True)
        for temperature, after, right in steps:
            if not wrong:
                continue
            moves = (after - before)[np.isfinite(before + after)]
            height = heights[temperature]
            out = wrong - len(moves)
            draw_boxes(axes, [moves], colors[temperature], 0.8, positions=[height], **look)
            beside = axes.get_yaxis_transform()
            axes.text(1.01, height, f"{out / wrong:.0%} left out", transform=beside, va="center", fontsize="small")
            quantiles = [""] * len(QUANTILES)
            median = "no median"
            if len(moves):
                quantiles = np.percentile(moves, PERCENTS).tolist()
                median = f"median {quantiles[2]:.4g}"
            rows.append([name, f"{temperature:g}", len(moves), out, f"{right.mean():.4f}", *quantiles])
            facts = f"{median} over {len(moves):,} images, {out:,} left out; the step corrects {right.mean():.0%}"
            lines.append(f"{name}, T={temperature:g}: {facts}")
        axes.axvline(0, color=GRAY, ls="--", lw=1, zorder=0)
        axes.set_yticks(range(len(colors)), list(map("T={:g}".format, colors)))
        title = f"{name}\n{wrong:,} wrong of {probe.boundary_tried.sum():,} images"
        axes.set(title=title, xlabel="change of distance, normalized pixels", ylim=(-0.6, len(colors) - 0.4))
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.xaxis.set_major_formatter(plain_tick)
        axes.sharex(grid[0])
    numbers = csv_text(("setting", "temperature", "images", "left out", "right after", *QUANTILES), rows, digits=4)
    title = "Distance to the decision boundary, after minus before one step"
    return Drawing(figure, title, [BOUNDARY_NOTE], lines, numbers)


@figure_of(reads=(ARRAYS,))
def softmax_figure(runs: list[DoneRun[ProbeResult]]) -> Drawing:
    """Bar charts of one image's softmax probabilities by class and temperature (Fig. 3).

    If runs differ only in the seed, only the run with the lowest seed is shown. The probabilities are written to a CSV
    file.
    """
    probes, colors = _probes(runs)
    figure, grid = panels(len(probes), 9.6, 3.4, across=1)
    rows = []
    lines = []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        label = int(probe.softmax_label[0])  # the probe with the lowest seed
        names = runs[0].result.labels.names
        classes = np.arange(len(names))
        by_temperature = zip(probe.temperatures, probe.softmax_probabilities[:, classes], strict=True)
        hottest_first = sorted(by_temperature, key=lambda pair: -pair[0])
        true = plain(names[label])
        width = 0.84 / len(hottest_first)
        for i, (temperature, shares) in enumerate(hottest_first):
            axes.bar(classes - 0.42 + width * (i + 0.5), shares, width, color=colors[temperature])
            for text, share in zip(names, shares, strict=True):
                rows.append((name, f"{temperature:g}", text, share))
            best = shares.argmax()
            facts = f"{plain(names[best])} {shares[best]:.3f}; true {true} {shares[label]:.3f}"
            lines.append(f"{name}, T={temperature:g}: {facts}")
        title = f"{name}\ntraining image {probe.softmax_row[0]}, class {true}"
        axes.set(title=title, ylabel="probability", ylim=(0, 1))
        axes.set_xticks(classes, [label_text(text, "\n") for text in names])
        axes.get_xticklabels()[label].set_fontweight("bold")
    _legend(figure, colors)
    numbers = csv_text(("setting", "temperature", "class", "probability"), rows, digits=6)
    return Drawing(figure, "Softmax of one image by temperature (true class in bold)", [SOFTMAX_NOTE], lines, numbers)


def _probes(runs: Sequence[Run]) -> tuple[dict[str, Probe], dict[float, Any]]:
    """Return a dict from setting to probe, and a dict from temperature to color."""
    probes = {}
    for name, members in by_name(runs).items():
        ordered = sorted(members, key=lambda run: run.seed)
        stored = by_key(entry for run in ordered for entry in arrays(run, ARRAYS).items())
        probe = Probe(temperatures=stored.pop("temperatures")[0].tolist())
        for key, of_seeds in stored.items():
            setattr(probe, key.replace(".", "_"), np.concatenate(of_seeds, -1))
        probes[name] = probe
    temperatures = sorted({temperature for probe in probes.values() for temperature in probe.temperatures})
    return probes, dict(zip(temperatures, scale_colors(temperatures), strict=True))


def _legend(figure: Figure, colors: dict[float, Any]) -> None:
    side_legend(figure, {f"T={t:g}": {"color": colors[t], "lw": 3} for t in sorted(colors, reverse=True)})
