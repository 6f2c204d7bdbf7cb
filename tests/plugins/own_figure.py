"""A figure of one's own: how long each round of federated runs took."""

import knot_runner as kr
from knot_runner.records import ROUNDS_FILE
from knot_runner.report.figures import style
from knot_runner.report.run_folders import rounds
from knot_runner.report.series import band, band_numbers


@style.figure_of(reads=[ROUNDS_FILE])
def round_seconds(runs, command):
    """Seconds that each round took, a line per method: mean over seeds, and its 95% interval."""
    made, (axes,) = style.panels(1, 7.0, 3.6)
    bands = {}
    for i, (name, members) in enumerate(style.by_name(runs).items()):
        logs = [rounds(run, command) for run in members]
        bands[(name,)] = band([{row["round"]: row["seconds"] for row in log} for log in logs])
        style.draw_band(axes, bands[(name,)], style.nth_color(i), label=name)
    axes.set(xlabel="round", ylabel="seconds")
    style.side_legend(made, [axes])
    lines = [f"{name}: {one.mean.mean():.3g} s a round" for (name,), one in bands.items()]
    numbers = band_numbers(["method", "round"], bands)
    return style.Drawing(made, "Seconds of each round", [style.seeds_note(runs)], lines, numbers)


kr.FIGURES["round_seconds"] = round_seconds
