"""The confusion matrix of a finished run, from its stored predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group

from knot_runner.metrics import TestSet
from knot_runner.records import has_record
from knot_runner.report.render.terminal import TerminalColumn, dimmed, results_grid, text_line
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import PREDICTIONS, MeasuredRun, predictions
from knot_runner.results import ONE_CLASS
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: Maximum number of wrong classes printed for each true class.
MOST_WRONG = 5


def confusion_counts(run: MeasuredRun) -> pd.DataFrame:
    """Return the confusion matrix of a run over all its test sets.

    The frame has one row per true class and one column per predicted class. Entries are counts of examples. The frame
    is empty if ``run`` stores no class predictions.
    """
    import pandas as pd

    if run.result.labels is None or not has_record(run.folder, run.result, PREDICTIONS):
        return pd.DataFrame()
    counts = sum(TestSet(shares, shares, labels).confusion for shares, labels in predictions(run).values())
    return pd.DataFrame(counts, run.result.labels.names, run.result.labels.names)


def confusion_shares(run: MeasuredRun) -> pd.DataFrame:
    """Return the confusion matrix of a run as fractions, with one row per pair of a true and a predicted class.

    The columns ``true`` and ``predicted`` are class names. The column ``confusion`` is the fraction of the true class's
    examples that the model assigns to the predicted class. If the true class has no examples, the fraction is 0. The
    frame is empty if ``run`` stores no class predictions.
    """
    counts = confusion_counts(run)
    if counts.empty:
        return counts
    shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0).rename_axis("true")
    return shares.reset_index().melt("true", var_name="predicted", value_name="confusion")


def confusion_table(run: MeasuredRun) -> Group:
    """Return the confusion matrix of a run as a table for the terminal, with one row per true class.

    A row shows the number of examples, the fraction of correct predictions, and the most frequent wrong predictions.

    Raises:
        UserError: The run stores no class predictions.
    """
    counts = confusion_counts(run)
    if counts.empty:
        raise UserError(f"runs of kind '{run.result.kind}' do not record predicted classes", run.folder)
    rows = []
    for true, predicted in counts.iterrows():
        wrong = predicted.drop(true).sort_values(ascending=False, kind="stable")
        texts = [f"{name} ({count})" for name, count in wrong[wrong > 0].items()]
        examples = predicted.sum()
        rows.append([true, str(examples), f"{predicted[true] / max(examples, 1):.0%}", first_few(texts, MOST_WRONG)])
    columns = [
        TerminalColumn("true class"), TerminalColumn("examples", right=True), TerminalColumn("right", right=True),
        TerminalColumn("predicted instead (examples)"),
    ]  # fmt: skip
    share = f"{np.trace(counts)} of {counts.to_numpy().sum()}"
    title = f"{run.task}, {run.method}, seed {run.seed}: {share} test examples are correct"
    notes = [note for note in run.result.notes if note.startswith(ONE_CLASS)]
    return Group(text_line(title, "bold"), results_grid(columns, rows), *dimmed(notes))
