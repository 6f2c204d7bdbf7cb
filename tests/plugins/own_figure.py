"""A figure of one's own: how long each round of federated runs took."""

import pandas as pd

import knot_runner as kr
from knot_runner.records import ROUNDS_FILE
from knot_runner.report.figures import style
from knot_runner.report.render.markup import csv_text
from knot_runner.report.run_folders import rounds
from knot_runner.report.series import estimates


@style.figure_of(reads=[ROUNDS_FILE])
def round_seconds(runs):
    """Seconds that each round took, a line per method: mean over seeds, and its 95% interval."""
    made, (axes,) = style.panels(1, 7.0, 3.6)
    logs = []
    for name, members in style.by_name(runs).items():
        logs += [pd.DataFrame(rounds(run)).assign(method=name, seed=run.seed) for run in members]
    bands = estimates(pd.concat(logs).rename(columns={"seconds": "value"}), ["method"], "round")
    lines = []
    for i, (name, band) in enumerate(bands.groupby("method", sort=False)):
        style.draw_band(axes, band, style.nth_color(i), "round", label=name)
        lines.append(f"{name}: {band.value.mean():.3g} s a round")
    axes.set(xlabel="round", ylabel="seconds")
    style.side_legend(made, [axes])
    numbers = csv_text(["method", "round", *style.BAND_HEADS], bands.itertuples(index=False), digits=6)
    return style.Drawing(made, "Seconds of each round", [style.seeds_note(runs)], lines, numbers)


kr.FIGURES["round_seconds"] = round_seconds
