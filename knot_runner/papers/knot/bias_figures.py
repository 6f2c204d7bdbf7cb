"""Figures of models on artificial inputs.

The bias figure shows the teachers' predictions on random texts (KNOT App. D.1). The probe figure shows how predictions
change if one word of a sentence changes (App. D.2).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.report.figures.style import (
    GRAY,
    GRID_GRAY,
    Drawing,
    by_name,
    figure_of,
    label_colors,
    label_text,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.paper_tables import read_printed
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import PROBE, StagesRun, kept_file
from knot_runner.report.run_rows import runs_with

if TYPE_CHECKING:
    import pandas as pd

#: Measure of :func:`probe_moves` -> title of the measure's axis.
MOVE_AXES = {"total_variation": "mean total variation (1 = disjoint)", "shift": "mean shift of expected label"}
PROBE_NOTE = "Pairs of sentences that differ in one word; a model that ignores the word is at 0."


@figure_of
def bias_figure(runs: list[StagesRun]) -> Drawing:
    """Bars of B_k, the fraction of random texts for which teacher k predicts each label (App. D.1).

    Bars are means over seeds, with a dot for each seed. If the authors' code contains the B_k of a teacher, these
    values are also shown.

    Raises:
        UserError: No run recorded a bias.
    """
    runs = with_bias(runs)
    labels = runs[0].result.labels
    by_seed = {run.seed: run.result.bias or {} for run in runs}  # methods of one seed share their teachers
    shares = by_key(entry for biases in by_seed.values() for entry in biases.items())
    is_real = runs[0].result.source != "embedded"
    published = read_printed("knot/bias").shares.get(runs[0].task, {}) if is_real else {}
    figure, grid = panels(len(shares), 3.4 if len(shares) > 1 else 5.0, 2.6, sharey=True)
    lines = []
    heights = -np.arange(len(labels.names))  # first label on top
    for axes, (teacher, biases) in zip(grid, shares.items(), strict=True):
        rows = np.array(biases)  # [seeds, C]
        means = rows.mean(0)
        axes.barh(heights, means, height=0.72, color=label_colors(labels), alpha=0.9)
        if len(rows) > 1:
            axes.plot(rows.T, heights, ls="", marker="o", ms=3, color="black", alpha=0.6)
        if teacher in published:
            axes.plot(
                published[teacher], heights, ls="", clip_on=False, label="authors' code", marker="D", ms=7, mfc="none",
                mec="black", mew=1.4,
            )  # fmt: skip
        axes.axvline(1 / len(heights), color=GRAY, ls="--", lw=1, label="uniform")
        axes.set(xlim=(0, 1.02), xlabel="share of random texts", title=plain(teacher))
        axes.set_yticks(heights, list(map(label_text, labels.names)))
        each = zip(labels.names, means, strict=True)
        lines.append(f"{teacher}: " + ", ".join(f"{text} {share:.3f}" for text, share in each))
    side_legend(figure, grid)
    note = f"Bars: mean over seeds {seed_list(runs)}; dots: each seed."
    return Drawing(figure, "Share of random texts given each label, per teacher", [note], lines)


def with_bias(runs: list[StagesRun]) -> list[StagesRun]:
    """Return the ``runs`` that recorded the teachers' biases.

    Raises:
        UserError: No run recorded a bias.
    """
    return runs_with(runs, "bias", "a bias; method=teachers and the methods weighted by E measure it")


@figure_of(reads=(PROBE,))
def probe_figure(runs: list[StagesRun]) -> Drawing:
    """Dot plot of how much predictions change if one word of a sentence changes (App. D.2).

    The values are written to a CSV file, and returned as text lines.
    """
    moves = probe_moves(runs)
    heights = {model: -i for i, model in enumerate(moves.model.unique())}  # first model on top
    probes = list(moves.groupby("probe", sort=False))
    figure, grid = panels(2, 4.6, 1.8 + 0.36 * len(heights), across=2, sharey=True)
    for axes, (measure, text) in zip(grid, MOVE_AXES.items(), strict=True):
        for i, (name, chosen) in enumerate(probes):
            shifted = chosen.model.map(heights) + 0.14 * ((len(probes) - 1) / 2 - i)
            marker = "os^vDP"[i % 6]
            axes.plot(chosen[measure], shifted, ls="", ms=8, marker=marker, color=nth_color(i), label=plain(name))
        axes.set_yticks(list(heights.values()), list(map(plain, heights)))
        axes.grid(axis="y", color=GRID_GRAY)
        axes.margins(x=0.08)
        axes.set_xlim(left=0)
        axes.set(xlabel=text, axisbelow=True)
    side_legend(figure, grid)
    lines = []
    for row in moves.itertuples():
        moved = f"total variation {row.total_variation:.3f}, shift of the expected label {row.shift:.3f}"
        lines.append(f"{row.model}, {row.probe}: {moved}, label changed in {row.flips:.0%} of {row.pairs} pairs")
    numbers = csv_text(moves.columns.str.replace("_", " "), moves.itertuples(index=False), digits=6)
    return Drawing(figure, "Predictions moved by one changed word", [PROBE_NOTE], lines, numbers)


def probe_moves(runs: Sequence[StagesRun]) -> pd.DataFrame:
    """Return a frame that tells how much each model's predictions change if one word of a sentence changes.

    The frame has a row for each combination of ``model`` and ``probe``. A probe is a set of sentences that differ in
    one word. The students come first, ordered by method. The model before distillation is next, and the teachers are
    last. The other columns are:

    - ``pairs``: the number of pairs of sentences
    - ``total_variation``: half the L1 distance between the two predictions of a pair, averaged over pairs
    - ``shift``: the distance between the expected labels of the two predictions of a pair, averaged over pairs
    - ``flips``: the fraction of pairs whose most likely label changes

    Runs that differ only in the seed are pooled. Runs with the same seed share the teachers and the model before
    distillation, so each of these models is used once per seed.
    """
    import pandas as pd

    pairs = []
    counted: dict[tuple[str, int], StagesRun] = {}
    for name, members in by_name(runs).items():
        for run in members:
            points = np.asarray(run.result.labels.coordinates, dtype=float)
            for entry in pd.DataFrame(json.loads(kept_file(run, PROBE))).itertuples():
                model = entry.model
                if model != "student" and counted.setdefault((model, run.seed), run) is not run:
                    continue
                shown = {"student": f"student, {name}", "before": "before distillation"}.get(model, f"teacher {model}")
                rank = {"student": 0, "before": 1}.get(model, 2)
                for first, second in itertools.combinations(np.asarray(entry.probabilities, dtype=float), 2):
                    moved = first - second
                    shift = float(np.linalg.norm(moved @ points))
                    flip = float(first.argmax() != second.argmax())
                    pairs.append((rank, shown, entry.probe, np.abs(moved).sum() / 2, shift, flip))
    frame = pd.DataFrame(pairs, columns=["rank", "model", "probe", "total_variation", "shift", "flips"])
    models = frame.sort_values("rank", kind="stable").model.unique()
    frame["model"] = pd.Categorical(frame.model, models)
    groups = frame.drop(columns="rank").groupby(["model", "probe"], observed=True, sort=False)
    moves = groups.mean().assign(pairs=groups.size()).sort_index(level="model", kind="stable")
    return moves.reset_index()[["model", "probe", "pairs", "total_variation", "shift", "flips"]].astype({"model": str})
