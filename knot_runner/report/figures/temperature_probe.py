"""Figures of the temperature probe: gradient norms, moves of the boundary, one softmax (FLex&Chill Fig. 1-3)."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.figure_style import GREY, figure_of, label_text, panels, save
from knot_runner.report.figures.expected_label import by_name
from knot_runner.report.records import probe as probe_view
from knot_runner.report.records.probe import ProbeRecord
from knot_runner.report.run_folders import Run
from knot_runner.report.text import escape_csv, plain
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

BINS = 70
#: Of Fig. 1: smallest norm drawn, as a share of the largest.
MIN_NORM = 1e-5
#: Of Fig. 2: the axis is linear up to here, logarithmic beyond.
LINEAR = 0.01
GRADIENT_NOTE = (
    "Norm, per training image, of the gradient of CE(z / T, y). The paper says 'at the input layer': here with respect "
    "to the weights of the first layer, or with method.gradient=pixels to the image. Smaller norms than drawn are in "
    "the first bin. The state of the model is open, too: method.warm_epochs of central training at T=1."
)
BOUNDARY_NOTE = (
    "Distance: smallest epsilon at which image + epsilon * sign(gradient) gets another decision, in normalised pixels; "
    "before and after one step of SGD on that image alone, each from the same start. The paper leaves open what a "
    "change is for a wrong image (here: to any other class), the attack's loss and limit, and the rate of the step "
    "(method.attack_label, attack_temperature, attack_limit, step_lr). Boxes: quartiles; whiskers: 5% to 95%. Images "
    "whose decision does not change up to the limit are left out (share at the right). The axis is linear between "
    f"-{LINEAR:g} and {LINEAR:g}, logarithmic beyond."
)
SOFTMAX_NOTE = (
    "softmax(z / T) of one model's logits, for its first misclassified training image of the class (lowest seed); the "
    "paper names neither the image nor the state of the model."
)


def temperature_colours(temperatures: Iterable[float]) -> dict[float, Any]:
    """A colour per temperature: blue below 1, the colder the darker; grey at 1; orange above, the hotter the darker."""
    from matplotlib import colormaps

    ordered = sorted(set(temperatures))
    cold, hot = sum(t < 1 for t in ordered), sum(t > 1 for t in ordered)
    made: dict[float, Any] = {}
    for i, temperature in enumerate(ordered):
        if temperature == 1:
            made[temperature] = GREY
        elif temperature < 1:
            made[temperature] = colormaps["Blues"](0.95 - 0.5 * i / cold)
        else:
            made[temperature] = colormaps["Oranges"](0.95 - 0.5 * (len(ordered) - 1 - i) / hot)
    return made


# ------------------------------------------------------------------------------------------------------- Fig. 1


@functools.partial(figure_of, reads=(probe_view.ARRAYS,))
def gradient_figure(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Histograms of gradient norms by temperature, images right and wrong apart (Fig. 1); returns the medians.

    A row of two panels per setting; quantiles go into a CSV beside the PNG. Seeds are pooled.
    """
    probes = _probes(runs, command)
    colours = _colours(probes)
    made, grid = panels(2 * len(probes), 4.4, 3.2, across=2, sharex=True)
    top = max(probe.norm.max() for probe in probes.values())
    bins = np.geomspace(top * MIN_NORM, top, BINS) if top > 0 else np.linspace(0, 1, BINS)
    lines, rows = [], []
    for i, (name, probe) in enumerate(probes.items()):
        for axes, (text, chosen) in zip(grid[2 * i : 2 * i + 2], _passes(probe), strict=True):
            axes.set_title(_titled(probes, name, f"{text}: {chosen.sum():,} images"))
            axes.set(xscale="log", xlabel="gradient norm at the input layer", ylabel="share of images")
            axes.xaxis.set_major_formatter(_tick)
            for temperature, norms in zip(probe.temperatures, probe.norm[:, chosen], strict=True):
                if len(norms):
                    drawn_norms = norms.clip(bins[0], bins[-1])
                    weights = np.full(len(norms), 1 / len(norms))
                    axes.hist(drawn_norms, bins, weights=weights, histtype="step", lw=1.6, color=colours[temperature])
                    rows.append(
                        [name, f"{temperature:g}", text, len(norms), int((norms == 0).sum()), *_quantiles(norms)]
                    )
    _legend(made, colours)
    save(made, path, "Gradient norms at the input layer by temperature", [GRADIENT_NOTE, *notes])
    _write(path, ["setting", "temperature", "forward pass", "images", "zeros", *QUANTILES], rows)
    for name, temperature, text, count, zeros, *quantiles in rows:
        beyond = f", {zeros} exactly 0" if zeros else ""
        lines.append(f"{_prefix(probes, name)}T={temperature}, {text}: median {quantiles[2]} of {count:,}{beyond}")
    return lines


def _passes(probe: ProbeRecord) -> list[tuple[str, np.ndarray]]:
    return [("right", probe.right), ("wrong", ~probe.right)]


# ------------------------------------------------------------------------------------------------------- Fig. 2


@functools.partial(figure_of, reads=(probe_view.ARRAYS,))
def boundary_figure(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Box plots of distance to the boundary after minus before one step, by temperature (Fig. 2); returns medians.

    A panel per setting; quantiles go into a CSV beside the PNG. Seeds are pooled. Raises :class:`UserError` when no
    model has an image wrong.
    """
    probes = _probes(runs, command)
    if not any(len(probe.before) for probe in probes.values()):
        raise UserError("method.boundary_images: every image is right, so none is moved; more images would be right")
    colours = _colours(probes)
    made, grid = panels(len(probes), 6.8 if len(probes) == 1 else 5.2, 2.0 + 0.42 * len(colours), across=2, sharex=True)
    lines, rows = [], []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        axes.set_title(_titled(probes, name, f"{len(probe.before):,} wrong of {probe.tried:,} images"))
        _boxes(axes, probe, colours)
        for k, (temperature, moves) in enumerate(zip(probe.temperatures, probe.moves(), strict=True)):
            put_right = probe.put_right[k].mean() if len(probe.before) else 0.0
            quantiles = _quantiles(moves) if len(moves) else [""] * len(QUANTILES)
            out = len(probe.before) - len(moves)
            rows.append([name, f"{temperature:g}", len(moves), out, f"{put_right:.4f}", *quantiles])
            median = f"median {quantiles[2]}" if len(moves) else "no median"
            lines.append(f"{_prefix(probes, name)}T={temperature:g}: {median} over {len(moves):,} images, {out:,} left "
                         f"out; the step puts {put_right:.0%} right")  # fmt: skip
    save(made, path, "Distance to the decision boundary, after minus before one step", [BOUNDARY_NOTE, *notes])
    _write(path, ["setting", "temperature", "images", "left out", "right after", *QUANTILES], rows)
    return lines


def _boxes(axes: Any, probe: ProbeRecord, colours: dict[float, Any]) -> None:
    order = list(colours)  # the hottest on top
    for temperature, moves in zip(probe.temperatures, probe.moves(), strict=True):
        place = order.index(temperature)
        style = {"facecolor": colours[temperature], "alpha": 0.8, "edgecolor": GREY}
        axes.boxplot(
            [moves],
            positions=[place],
            widths=0.6,
            orientation="horizontal",
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops=style,
            medianprops={"color": "black", "lw": 2},
        )
        if len(probe.before):
            out = 1 - len(moves) / len(probe.before)
            axes.text(1.01, place, f"{out:.0%} left out", transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.axvline(0, color=GREY, ls="--", lw=1, zorder=0)
    axes.set_yticks(range(len(order)), [f"T={temperature:g}" for temperature in order])
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xscale("symlog", linthresh=LINEAR)
    axes.xaxis.set_major_formatter(_tick)
    axes.set_xlabel("change of distance, normalised pixels")


# ------------------------------------------------------------------------------------------------------- Fig. 3


@functools.partial(figure_of, reads=(probe_view.ARRAYS,))
def softmax_figure(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """Bars of softmax(z / T) of one image, by class and temperature (Fig. 3); returns each temperature's top class.

    A panel per setting; the probabilities go into a CSV beside the PNG.
    """
    probes = _probes(runs, command)
    colours = _colours(probes)
    known = runs[0].result.get("labels", {}).get("names", [])
    made, grid = panels(len(probes), 9.6, 3.4, across=1)
    lines, rows = [], []
    for axes, (name, probe) in zip(grid, probes.items(), strict=True):
        count = probe.shares.shape[1]
        names = known if len(known) == count else [str(label) for label in range(count)]
        width = 0.84 / len(probe.temperatures)
        for i, (temperature, shares) in enumerate(sorted(zip(probe.temperatures, probe.shares, strict=True),
                                                         key=lambda pair: -pair[0])):  # fmt: skip
            axes.bar(np.arange(count) - 0.42 + width * (i + 0.5), shares, width, color=colours[temperature])
            best = shares.argmax()
            lines.append(f"{_prefix(probes, name)}T={temperature:g}: {plain(names[best])} {shares[best]:.3f}; "
                         f"true {plain(names[probe.label])} {shares[probe.label]:.3f}")  # fmt: skip
            rows += [[name, f"{temperature:g}", escape_csv(text), f"{share:.6g}"]
                     for text, share in zip(names, shares, strict=True)]  # fmt: skip
        axes.set_title(_titled(probes, name, f"training image {probe.row}, class {plain(names[probe.label])}"))
        axes.set(ylabel="probability", ylim=(0, 1))
        axes.set_xticks(range(count), [label_text(text, "\n") for text in names])
        axes.get_xticklabels()[probe.label].set_fontweight("bold")
    _legend(made, colours)
    save(made, path, "Softmax of one image by temperature (true class in bold)", [SOFTMAX_NOTE, *notes])
    _write(path, ["setting", "temperature", "class", "probability"], rows)
    return lines


# ------------------------------------------------------------------------------------------------------- shared

QUANTILES = ("5%", "25%", "median", "75%", "95%")


def _quantiles(values: np.ndarray) -> list[str]:
    return [f"{value:.4g}" for value in np.percentile(values, (5, 25, 50, 75, 95))]


def _probes(runs: Sequence[Run], command: str) -> dict[str, ProbeRecord]:
    return {name: probe_view.pool_probes(members, command) for name, members in by_name(runs).items()}


def _colours(probes: dict[str, ProbeRecord]) -> dict[float, Any]:
    return temperature_colours(t for probe in probes.values() for t in probe.temperatures.tolist())


def _titled(probes: dict[str, ProbeRecord], name: str, text: str) -> str:
    return f"{name}\n{text}" if len(probes) > 1 else text


def _prefix(probes: dict[str, ProbeRecord], name: str) -> str:
    return f"{name}, " if len(probes) > 1 else ""


def _tick(value: float, _: int) -> str:
    return f"{value:g}"  # matplotlib's own powers of ten need its math text, which is off


def _legend(made: Any, colours: dict[float, Any]) -> None:
    from matplotlib.patches import Patch

    hottest_first = sorted(colours, reverse=True)
    made.legend([Patch(color=colours[t]) for t in hottest_first], [f"T={t:g}" for t in hottest_first],
                loc="outside right upper")  # fmt: skip


def _write(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *([escape_csv(row[0]), *row[1:]] for row in rows)])
    write_atomic(path.with_suffix(".csv"), out.getvalue())
