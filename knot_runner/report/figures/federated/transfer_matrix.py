"""Figure of transfer matrices: whose update helps whom, lambda of clients side by side with their groups."""

from __future__ import annotations

import numpy as np

from knot_runner.records import CLIENTS_FILE
from knot_runner.report import run_folders
from knot_runner.report.figures import style
from knot_runner.report.figures.client_map import draw_map, mark_clients
from knot_runner.report.figures.output import type_size
from knot_runner.report.render.text import plain
from knot_runner.report.row_keys import runs_with
from knot_runner.report.run_folders import Run
from knot_runner.report.series import Numbers

TRANSFER_NOTE = "Row: the client whose model it is; column: the client whose update it has. Blue below 0, red above."


@style.figure_of(reads=(CLIENTS_FILE,))
def transfer_figure(runs: list[Run], command: str) -> style.Drawing:
    """A map of lambda [K, K] per setting, of its first seed, clients sorted by group; the means over all seeds come
    back as lines. Raises :class:`UserError` for runs without a transfer matrix."""
    having = runs_with(runs, "personalisation.transfer", "a transfer matrix; method=transfer_matrix learns one")
    found = style.by_name(having)
    made, grid = style.panels(len(found), 3.9, 3.7)
    lines, rows = [], []
    for axes, (title, seeds) in zip(grid, found.items(), strict=True):
        first = min(seeds, key=lambda run: run.job.seed)
        matrix, groups = transfer_matrix(first, command)
        _draw_lambda(axes, matrix, groups)
        axes.set_title(plain(title), fontsize=type_size(9), wrap=True)
        lines.append(f"{title}: {_transfer_means(seeds)}")
        rows += [(title, first.job.seed, *pair, float(value)) for pair, value in np.ndenumerate(matrix)]
    numbers = Numbers(("setting", "seed", "client", "update of", "lambda"), rows, digits=8)
    return style.Drawing(made, "Weights of clients' updates", [TRANSFER_NOTE], lines, numbers)


def transfer_matrix(run: Run, command: str = "") -> tuple[np.ndarray, np.ndarray | None]:
    """lambda [K, K] and the groups [K] of the clients, where there are any. Raises :class:`UserError`."""
    stored = run_folders.arrays(run, CLIENTS_FILE, command)
    with run_folders.refuse_damage(run, CLIENTS_FILE, command):
        matrix, groups = stored["lambda"], stored.get("groups")
        run_folders.demand(matrix.ndim == 2 and len(matrix) == matrix.shape[1] and np.isfinite(matrix).all())
        run_folders.demand(groups is None or groups.shape == (len(matrix),))
    return matrix, groups


def _draw_lambda(axes: style.Axes, matrix: np.ndarray, groups: np.ndarray | None) -> None:
    reach = float(np.quantile(np.abs(matrix), 0.99)) or 1.0  # a few large ones would leave the others pale
    listed = None if groups is None else groups.tolist()
    draw_map(axes, matrix, listed, cmap="RdBu_r", vmin=-reach, vmax=reach)
    mark_clients(axes, listed, xlabel="update of client")


def _transfer_means(runs: list[Run]) -> str:
    """Mean over seeds of what the results say."""
    facts = [run.result["personalisation"]["transfer"] for run in runs]
    names = {"own": "own", "others": "others", "within": "within groups", "across": "across groups", "auc": "AUC"}
    known = {key: [one[key] for one in facts if one.get(key) is not None] for key in names}
    return ", ".join(f"{names[key]} {np.mean(values):.3f}" for key, values in known.items() if values)
