"""Figures of clients' personalized models, and a table of the trade-off between ID and OOD accuracy.

The ID accuracy of a client's model is measured on the client's own test examples, and the OOD accuracy on the test
examples of other clients. The figures show:

- ID against OOD accuracy during fine-tuning or along a soup, an interpolation of weights
- loss landscapes of two clients around their fine-tuning
- transfer matrices: the weight of each client's update in each client's model
"""

from __future__ import annotations

import functools

import numpy as np

from knot_runner.metrics import METRICS
from knot_runner.records import CLIENTS_FILE
from knot_runner.report.figures.maps import draw_map, mark_clients
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.figures.style import (
    PALETTE,
    Drawing,
    by_name,
    figure_of,
    nth_color,
    panels,
    seed_list,
    side_legend,
)
from knot_runner.report.render.markup import csv_text
from knot_runner.report.render.table_model import ColumnGroup, Parts
from knot_runner.report.run_folders import DoneRun, Run, arrays, lookup
from knot_runner.report.run_rows import runs_with
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.kind import TableKind, TableRequest
from knot_runner.report.tables.methods import methods_by_data
from knot_runner.results.federated import FederatedResult

FederatedRun = DoneRun[FederatedResult]
ID_OOD_NOTE = (
    "ID: each client's own model on its own test examples; OOD: on every other client's, with equal weights; means "
    "over clients and seeds. Star: the model of the last round, where every line begins. The upper right is better."
)


@figure_of
def id_ood_figure(runs: list[FederatedRun]) -> Drawing:
    """ID accuracy against OOD accuracy of personalized models: means over seeds, one line per method.

    Each marker is an evaluated point: a step of fine-tuning, or a mixing weight. The returned text gives the ID
    accuracy of each method's first point, and the ID and OOD accuracy of its last point. A CSV file lists the points of
    every seed.
    """
    having = runs_with(runs, "personalization", "personal models; method=soup or finetune trains them")
    figure, (axes,) = panels(1, 8.2, 5.0)
    lines = []
    numbers = []
    starts = []
    for number, (name, members) in enumerate(by_name(having).items()):
        curves = []
        for run in members:
            facts = lookup(run.result, "personalization")
            points = sorted(facts.points, key=lambda point: (point.step, point.alpha))
            curves.append([(point.ood_accuracy, point.id_accuracy) for point in (facts.start, *points)])
            starts.append(curves[-1][0])
            for point in facts.points:
                numbers.append((name, run.seed, point.step, point.alpha, point.ood_accuracy, point.id_accuracy))
        curve = 100 * np.mean(curves, axis=0)  # [points + 1, 2]: (OOD, ID), starting with the model of the last round
        axes.plot(*curve.T, marker="o", ms=3.5, lw=1.5, color=nth_color(number), label=name)
        (_, first), (ood, last) = curve[[0, -1]]
        lines.append(f"{name}: ends at ID {last:.2f}%, OOD {ood:.2f}%, from ID {first:.2f}%")
    axes.plot(*(100 * np.mean(starts, axis=0)), marker="*", ms=13, color="black", ls="", label="last round", zorder=5)
    axes.margins(0.08)  # room for the star in a corner
    axes.set(xlabel="OOD accuracy (%)", ylabel="ID accuracy (%)")
    side_legend(figure, [axes], loc="outside right center")
    heads = ("method", "seed", "step", "alpha", "ood_accuracy", "id_accuracy")
    title = f"{runs[0].task}: clients' own models in and out of distribution"
    notes = [ID_OOD_NOTE, f"Seeds {seed_list(having)}."]
    return Drawing(figure, title, notes, lines, csv_text(heads, numbers, digits=6))


LANDSCAPE_NOTE = (
    "Mean loss (nats) of theta_0 + x b1 + y b2: b1 leads from the model of the last round (star) to the last "
    "checkpoint of its fine-tuning (line with points, projected). b2 leads to a checkpoint in between, made "
    "orthogonal to b1 and equally long. Dashed: the soup. Triangle: the least loss of the grid."
)


@figure_of(reads=(CLIENTS_FILE,))
def landscape_figure(runs: list[FederatedRun]) -> Drawing:
    """Contours of the loss on planes in weight space, with one plane for each of two fine-tuned clients.

    A client's left panel shows the loss on the client's own test examples. The client's right panel shows the loss on
    the test examples of the other clients, averaged over these clients. Only the first run with landscapes is drawn.
    """
    run = runs_with(runs, "personalization.landscape", "landscapes; personalization.kind=landscape measures them")[0]
    stored = arrays(run, CLIENTS_FILE)
    facts = lookup(run.result, "personalization.landscape")
    figure, grid = panels(2 * len(facts), 5.4, 4.3, across=2)
    lines = []
    for row, landscape in enumerate(facts):
        client = landscape.client
        x, y, losses, path, segment = (
            stored[f"landscape/{client}/{name}"] for name in ("x", "y", "loss", "path", "segment")
        )
        for part, what in enumerate(("own test examples", "the other clients'")):
            axes = grid[2 * row + part]
            loss = losses[:, :, part]
            levels = np.linspace(loss.min(), np.quantile(loss, 0.95), 18)  # otherwise, the corners would use all levels
            surface = axes.contourf(x, y, loss, levels=levels, cmap="viridis_r", extend="max")
            axes.plot([0, 1], [0, 0], ls="--", color="white", lw=1.3)
            axes.plot(*path.T[:2], marker="o", ms=3, lw=1.2, color="black")  # without the distance from the plane
            axes.plot(0, 0, marker="*", ms=13, color="white", mec="black", ls="")
            i, j = np.unravel_index(loss.argmin(), loss.shape)
            axes.plot(x[j], y[i], marker="v", ms=9, color=PALETTE[2], mec="white", clip_on=False)
            figure.colorbar(surface, ax=axes)
            axes.set(title=f"client {client}: loss on {what}", xlabel="x", ylabel="y")
        (first, first_others), (last, last_others) = segment[[0, -1]]
        lines.append(
            f"client {client}: loss on its own {first:.3f} -> {last:.3f}, on the others' {first_others:.3f} -> "
            f"{last_others:.3f}; above the line between the ends by at most {landscape.barrier:+.3f}, "
            f"{landscape.barrier_others:+.3f}"
        )
    title = f"{run.task}: landscapes of two clients' fine-tuning, seed {run.seed}"
    return Drawing(figure, title, [LANDSCAPE_NOTE], lines)


#: Field of the facts on a transfer matrix -> its description in the lines.
TRANSFER_MEANS = {"own": "own", "others": "others", "within": "within groups", "across": "across groups", "auc": "AUC"}
TRANSFER_NOTE = "Row: the client whose model it is; column: the client whose update it has. Blue below 0, red above."


@figure_of(reads=(CLIENTS_FILE,))
def transfer_figure(runs: list[FederatedRun]) -> Drawing:
    """Heat maps of the transfer matrix lambda [K, K] of K clients, with clients sorted by group.

    Each map shows the run with the lowest seed. The returned text gives statistics of lambda, averaged over seeds.

    Raises:
        UserError: No run has a transfer matrix.
    """
    having = runs_with(
        runs, "personalization.transfer", "a transfer matrix; personalization.kind=transfer_matrix learns one"
    )
    groups_of_runs = by_name(having)
    figure, grid = panels(len(groups_of_runs), 3.9, 3.7)
    lines = []
    rows = []
    for axes, (title, seeds) in zip(grid, groups_of_runs.items(), strict=True):
        first = min(seeds, key=lambda run: run.seed)
        stored = arrays(first, CLIENTS_FILE)
        matrix = stored["lambda"]
        groups = stored["groups"].tolist() if "groups" in stored else None
        reach = float(np.quantile(np.abs(matrix), 0.99)) or 1.0  # a few large entries would make the others pale
        draw_map(axes, matrix, groups, cmap="RdBu_r", vmin=-reach, vmax=reach)
        mark_clients(axes, groups, xlabel="update of client")
        axes.set_title(title, fontsize="small")
        means = []  # means over seeds of the recorded facts
        for key, text in TRANSFER_MEANS.items():
            values = [lookup(run.result, f"personalization.transfer.{key}") for run in seeds]
            if None not in values:
                means.append(f"{text} {np.mean(values):.3f}")
        lines.append(f"{title}: {', '.join(means)}")
        rows += [(title, first.seed, *pair, float(value)) for pair, value in np.ndenumerate(matrix)]
    numbers = csv_text(("setting", "seed", "client", "update of", "lambda"), rows, digits=8)
    return Drawing(figure, "Weights of clients' updates", [TRANSFER_NOTE], lines, numbers)


# ------------------------------------------------------------------------------------------------- table of trade-offs

#: Default metrics of tables of the kind ``personal``.
PERSONAL_METRICS = ("id_accuracy", "ood_accuracy", "clients_hurt")
#: Column of a personal table -> key of the number in the result's ``personalization``; "" for the number of steps.
TRADE_OFFS = {
    ColumnGroup(
        "matched", "best ID accuracy at an OOD accuracy of at most a point less", ("ALL",), head="ID at OOD -1"
    ): "id_at_matched_ood.1",
    ColumnGroup("area", "area of the trade-off curve", ("ALL",), 4, head="area"): "area",
    ColumnGroup("steps", "optimizer steps of a client after the rounds", ("ALL",), 0, head="steps"): "",
}
TRADE_OFF_LINE = (
    "ID: a client's model on its own test examples, OOD: on each other client's, with equal weights. ID at OOD -1: the "
    "best of the run's measured models whose OOD accuracy is at most a point below that of the last round. Area: what "
    "the curve of (OOD, ID) dominates above the OOD accuracy of guessing and the ID accuracy of the last round. Both "
    "include the last round's model."
)


def personal_table(request: TableRequest) -> Parts:
    """Return a table of the trade-off between ID and OOD accuracy of personalized models."""
    columns = {group: functools.partial(_trade_off, key=key) for group, key in TRADE_OFFS.items()}
    return methods_by_data(request, ("ALL",), columns, [TRADE_OFF_LINE])


def _trade_off(run: Run, key: str) -> float | None:
    facts = lookup(run.result, "personalization")
    if facts and not key:
        return max(float(point.sgd_steps) for point in facts.points)
    value: float | None = lookup(facts, key)
    return value


FIGURES.update(transfer_matrix=transfer_figure, id_ood=id_ood_figure, landscape=landscape_figure)
TABLE_KINDS.update(personal=TableKind(personal_table, METRICS.keys, PERSONAL_METRICS, printed="methods"))
