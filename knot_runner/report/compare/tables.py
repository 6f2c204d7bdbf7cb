"""The three tables of ``compare``: a row per group of runs, per run, or per choice of the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from knot_runner.report.compare.best import Choice, Rule, selection_line
from knot_runner.report.compare.groups import SEED, RunGroup, count_columns, lines_on, mean_of, state_counts
from knot_runner.report.compare.measures import digits, measure_title
from knot_runner.report.compare.records import RunRecord
from knot_runner.report.compare.settings import short_names, sort_key
from knot_runner.report.compare.sheet import Column, MeanEstimate, Sheet

READING_LINES = (
    "Mean ± half of its 95% t interval over the n finished runs of a row; of a share [low, high] where that is cut at "
    "0 or 1. These are estimates: only claims decide what is better."
)


def of_groups(groups: Sequence[RunGroup], keys: Sequence[str], measures: Sequence[str]) -> Sheet:
    """One row per group: its settings, how many runs of each state, means."""
    counted = count_columns(groups)
    means = [[mean_of(one.finished, key) for key in measures] for one in groups]
    columns = [*_key_columns(keys), *counted, *_measure_columns(measures, means)]
    rows = [(*one.key, *state_counts(one, counted), *own) for one, own in zip(groups, means, strict=True)]
    return Sheet("", tuple(columns), tuple(rows), (READING_LINES, *lines_on(groups, keys, measures)))


def of_runs(records: Sequence[RunRecord], keys: Sequence[str], measures: Sequence[str]) -> Sheet:
    """One row per run: its id, settings, seed and state, and its numbers."""
    keys = [*(key for key in keys if key != SEED), SEED]
    ordered = sorted(records, key=lambda record: tuple(sort_key(record.value(key)) for key in keys))
    cells = [[record.numbers.get(key) if record.state == "done" else None for key in measures] for record in ordered]
    found = [[value for row in cells if (value := row[i]) is not None] for i in range(len(measures))]
    heads = _key_columns(dict.fromkeys(["run_id", *keys, "status"]))
    columns = [
        Column(key, measure_title(key), "value", digits(key, own)) for key, own in zip(measures, found, strict=True)
    ]
    rows = [(*(record.value(head.name) for head in heads), *own) for record, own in zip(ordered, cells, strict=True)]
    return Sheet("", (*heads, *columns), tuple(rows), ())


def of_choices(choices: Sequence[Choice], rule: Rule, keys: Sequence[str], measures: Sequence[str]) -> Sheet:
    """One row per choice: what it was made in, what was chosen out of how many, and the means to report; with halves
    also the mean that it was selected by."""
    heads = [*_key_columns((*keys, *rule.over)), Column("n", "n", "count"), Column("settings", "of", "count")]
    means = [[mean_of(choice.reported, key) for key in measures] for choice in choices]
    columns = _measure_columns(measures, means)
    if rule.split == "half":
        means = [[*own, mean_of(choice.selected, rule.measure)] for own, choice in zip(means, choices, strict=True)]
        place = columns[measures.index(rule.measure)].digits
        columns.append(Column(f"{rule.measure}.selecting_half", "selected by", "measure", place))
    rows = [
        (*choice.outer.key, *choice.values, len(choice.reported), choice.candidates, *own)
        for choice, own in zip(choices, means, strict=True)
    ]
    chosen = [RunGroup((*choice.outer.key, *choice.values), choice.reported) for choice in choices]
    lines = (READING_LINES, *selection_line(rule, choices, keys), *lines_on(chosen, (*keys, *rule.over), measures))
    return Sheet("", (*heads, *columns), tuple(rows), lines)


def _key_columns(keys: Iterable[str]) -> list[Column]:
    heads = short_names(list(keys))
    return [Column(key, head, "key") for key, head in heads.items()]


def _measure_columns(measures: Sequence[str], means: Sequence[Sequence[MeanEstimate | None]]) -> list[Column]:
    columns = []
    for i, key in enumerate(measures):
        values = [estimate.mean for own in means if (estimate := own[i]) is not None]
        columns.append(Column(key, measure_title(key), "measure", digits(key, values)))
    return columns
