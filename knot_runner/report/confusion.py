"""The confusion matrix of a finished run, from its stored predictions."""

from __future__ import annotations

import numpy as np
from rich.console import Group

from knot_runner.metrics import TestSet
from knot_runner.records import has_record
from knot_runner.report.render.terminal import DIM, TerminalColumn, results_grid, text_line
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import PREDICTIONS, MeasuredRun, predictions
from knot_runner.results import ONE_CLASS
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

#: Of a class, at most so many wrong predictions are printed.
MOST_WRONG = 5


def confusion_counts(run: MeasuredRun) -> np.ndarray | None:
    """Return counts [C, C] of test examples by true and predicted class, over all test sets.

    Return None if ``run`` stores no class predictions.
    """
    if run.result.labels is None or not has_record(run.folder, run.result, PREDICTIONS):
        return None
    after = [pair for name, pair in predictions(run).items() if not name.startswith("before/")]
    counts: np.ndarray = np.sum([TestSet(shares, shares, labels).confusion for shares, labels in after], axis=0)
    return counts


def confusion_rows(run: MeasuredRun) -> list[LogRow]:
    """Return one row per pair of a ``true`` and a ``predicted`` class.

    ``confusion`` is the share of the true class's examples that the model assigns to the predicted class. The share is
    NaN for a class without examples. The list is empty if ``run`` stores no predictions.
    """
    counts = confusion_counts(run)
    if counts is None or run.result.labels is None:
        return []
    names = run.result.labels.names
    sums = np.maximum(counts.sum(1), 1)
    places = np.ndindex(counts.shape)
    return [{"true": names[i], "predicted": names[j], "confusion": counts[i, j] / sums[i]} for i, j in places]


def confusion_table(run: MeasuredRun) -> Group:
    """Return a table with one row per true class: the number of examples, the correct share, and the errors.

    Raises:
        UserError: The run stores no predictions.
    """
    counts = confusion_counts(run)
    if counts is None or run.result.labels is None:
        raise UserError(f"runs of kind '{run.result.kind}' record no predicted classes", run.folder)
    names = run.result.labels.names
    rows = []
    for i, predicted in enumerate(counts):
        wrong = [j for j in np.argsort(-predicted, kind="stable") if j != i and predicted[j]]
        texts = [f"{names[j]} ({predicted[j]})" for j in wrong]
        share = f"{predicted[i] / max(predicted.sum(), 1):.0%}"
        rows.append([names[i], str(predicted.sum()), share, first_few(texts, MOST_WRONG)])
    numbers = [TerminalColumn(head, right=True) for head in ("examples", "right")]
    columns = [TerminalColumn("true class"), *numbers, TerminalColumn("predicted instead (examples)")]
    title = f"{run.task}, {run.method}, seed {run.seed}: {np.trace(counts)} of {counts.sum()} test examples are correct"
    notes = [text_line(note, DIM) for note in run.result.notes if note.startswith(ONE_CLASS)]
    return Group(text_line(title, "bold"), results_grid(columns, rows), *notes)
