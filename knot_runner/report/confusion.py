"""The confusion matrix of a finished run, from its stored predictions."""

from __future__ import annotations

import numpy as np
from rich.console import Group

from knot_runner.metrics import TestSet
from knot_runner.records import has_record
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.run_folders import PREDICTIONS, MeasuredRun, predictions
from knot_runner.results.base import ONE_CLASS
from knot_runner.util.errors import UserError

#: A table of more classes does not fit a terminal; their most frequent confusions are listed instead.
MOST_COLUMNS = 12
MOST_PAIRS = 20


def has_predictions(run: MeasuredRun) -> bool:
    """Return whether the run keeps predictions of classes."""
    return run.result.labels is not None and has_record(run.folder, run.result, PREDICTIONS)


def confusion_counts(run: MeasuredRun) -> np.ndarray:
    """Return counts [C, C] of test examples by true and predicted class, over all test sets."""
    after = [pair for name, pair in predictions(run).items() if not name.startswith("before/")]
    return np.sum([TestSet(shares, shares, labels).confusion for shares, labels in after], axis=0)


def row_shares(counts: np.ndarray) -> np.ndarray:
    """Return ``counts`` [C, C] divided by their rows' sums; NaN in the row of a class without examples."""
    sums = counts.sum(1, keepdims=True)
    return np.divide(counts, sums, out=np.full(counts.shape, np.nan), where=sums > 0)


def confusion_table(run: MeasuredRun) -> Group:
    """Return counts by class, and the share of each true class that is right; of many classes, the most frequent
    confusions. Raises :class:`UserError`."""
    if run.result.labels is None or not has_predictions(run):
        raise UserError(f"runs of kind {run.result.kind} keep no predictions of classes", run.folder)
    names = run.result.labels.names
    counts = confusion_counts(run)
    shares = row_shares(counts)
    if len(names) <= MOST_COLUMNS:
        heads = ["true class", *names, "right"]
        rows = [[name, *map(str, counts[i]), _percent(shares[i, i])] for i, name in enumerate(names)]
        line = "Columns: predicted classes. Right: share of the true class."
    else:
        heads = ["true class", "predicted class", "count", "share of the true class"]
        wrong = counts - np.diag(np.diag(counts))
        pairs = [divmod(int(place), len(names)) for place in np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]]
        rows = [[names[i], names[j], str(counts[i, j]), _percent(shares[i, j])] for i, j in pairs if wrong[i, j]]
        line = f"The most frequent confusions of {len(names)} classes; --out=FILE draws all."
    columns = [
        TerminalColumn(head, right=head not in ("true class", "predicted class"), no_wrap=True) for head in heads
    ]
    title = f"{run.task}, {run.method}, seed {run.seed}: {np.trace(counts)} of {counts.sum()} test examples are right"
    notes = [note for note in run.result.notes if note.startswith(ONE_CLASS)]
    lines = [text_line(text, DIM) for text in (line, *notes)]
    return Group(text_line(title, "bold"), results_grid(columns, rows), *lines)


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{share:.0%}"
