"""Runs put into groups, one row each: how many there are of each state, and what a reader must know of the means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from knot_runner.report.compare.measures import is_share, measure_title
from knot_runner.report.compare.records import MADE_WITH, RunRecord, differing
from knot_runner.report.compare.settings import sort_key
from knot_runner.report.compare.sheet import Column, MeanEstimate, mean_estimate

SEED = "seed"
#: States of runs without a number, each a column where there is one.
WITHOUT = ("diverged", "failed", "damaged", "other data", "unfinished")
#: Settings, and values of one, that a line names; of more it gives the number.
_MAX_NAMED = 4


@dataclass(frozen=True)
class RunGroup:
    """``records`` that agree in the settings grouped by, whose values are ``key`` (None: not a setting of theirs)."""

    key: tuple[str | None, ...]
    records: tuple[RunRecord, ...]

    @property
    def finished(self) -> list[RunRecord]:
        return [record for record in self.records if record.state == "done"]

    @property
    def seeds(self) -> list[int]:
        return sorted(record.seed for record in self.finished)


def group_runs(records: Iterable[RunRecord], keys: Sequence[str]) -> list[RunGroup]:
    """``records`` by their values of ``keys``, in the order of those: numbers by size, then words."""
    found: dict[tuple[str | None, ...], list[RunRecord]] = {}
    for record in records:
        found.setdefault(tuple(record.value(key) for key in keys), []).append(record)
    return [RunGroup(key, tuple(found[key])) for key in sorted(found, key=lambda key: tuple(map(sort_key, key)))]


def mean_of(records: Iterable[RunRecord], measure: str) -> MeanEstimate | None:
    """Mean and interval of ``measure`` over those of ``records`` that have it."""
    values = [record.numbers.get(measure) for record in records]
    return mean_estimate([float(value) for value in values if value is not None], 1.0 if is_share(measure) else None)


def count_columns(groups: Sequence[RunGroup]) -> list[Column]:
    """``n``, the finished runs; and a column for each other state that some run is in."""
    there = {record.state for one in groups for record in one.records}
    heads = {"diverged": "div."}
    return [Column("n", "n", "count")] + [
        Column(state, heads.get(state, state), "count") for state in WITHOUT if state in there
    ]


def state_counts(one: RunGroup, columns: Sequence[Column]) -> list[int]:
    """How many runs of a group are in the state of each of the ``columns``."""
    states = Counter(record.state for record in one.records)
    return [states["done" if column.name == "n" else column.name] for column in columns]


# --------------------------------------------------------------------------------------------------------------- lines


def lines_on(groups: Sequence[RunGroup], keys: Sequence[str], measures: Sequence[str]) -> list[str]:
    """What is mixed within rows, what else sets rows apart, which seeds they rest on, and what has no number."""
    return [
        *_mixed(groups, keys),
        *_made_differently(groups),
        *_other_data(groups),
        *_confounded(groups, keys),
        *_seeds(groups),
        *_unmeasured(groups, measures),
    ]


def _mixed(groups: Sequence[RunGroup], keys: Sequence[str]) -> list[str]:
    """Settings in which the runs of one mean differ."""
    rows, values = 0, dict[str, set[str | None]]()
    for one in groups:
        apart, settings = differing(one.finished)
        inside = [key for key in apart if key != SEED and key not in keys]
        rows += bool(inside)
        for key in inside:
            values.setdefault(key, set()).update(own.get(key) for own in settings)
    if not values:
        return []
    return [f"In {rows} of {len(groups)} rows the mean is over runs that differ in {_settings(values)} (see --by)."]


def _made_differently(groups: Sequence[RunGroup]) -> list[str]:
    lines = []
    for fact in MADE_WITH:
        inside = [{record.facts.get(fact) for record in one.finished} for one in groups]
        mixed = [values for values in inside if len(values) > 1]
        if mixed:
            what = "digest of the data" if fact == "data" else fact
            text = f": {_listed(set().union(*mixed))}" if fact != "data" else ""
            lines.append(f"In {len(mixed)} of {len(groups)} rows the mean is over runs that differ in {what}{text}.")
    return lines


def _other_data(groups: Sequence[RunGroup]) -> list[str]:
    """Rows of one task and seed, with all its settings alike, that were made from different data."""
    found: dict[tuple[object, ...], set[str | None]] = {}
    for record in (record for one in groups for record in one.finished):
        task = tuple((key, value) for key, value in record.settings.items() if key.partition(".")[0] == "task")
        found.setdefault((record.seed, *task), set()).add(record.facts.get("data"))
    if all(len(digests) == 1 for digests in found.values()):
        return []
    return ["Runs of one task were made from different data (paths.data=DIR leaves out what was not made from DIR)."]


def _confounded(groups: Sequence[RunGroup], keys: Sequence[str]) -> list[str]:
    """Settings of other config groups than those of ``keys`` in which rows differ, each of one value within its row."""
    shown = {key.partition(".")[0] for key in keys} | {SEED}
    apart, first = differing([one.finished[0] for one in groups if one.finished])
    inside = {key for one in groups for key in differing(one.finished)[0]} | set(keys)
    other = [key for key in apart if key.partition(".")[0] not in shown and key not in inside]
    values = {key: {own.get(key) for own in first} for key in other}
    values = {key: own for key, own in values.items() if not any((value or "")[:1] in "[{" for value in own if value)}
    return [f"Rows differ in {_settings(values)}, too."] if values else []


def _seeds(groups: Sequence[RunGroup]) -> list[str]:
    repeated = sum(len(set(one.seeds)) < len(one.seeds) for one in groups)
    lines = [f"In {repeated} of {len(groups)} rows a seed counts more than once."] if repeated else []
    sets = Counter(",".join(map(str, sorted(set(one.seeds)))) for one in groups if one.seeds)
    if len(sets) > 1:
        each = (f"{seeds} ({rows})" for seeds, rows in sets.most_common(_MAX_NAMED))
        lines.append(f"Rows do not rest on the same seeds: {'; '.join(each)}{', ...' * (len(sets) > _MAX_NAMED)}.")
    return lines


def _unmeasured(groups: Sequence[RunGroup], measures: Sequence[str]) -> list[str]:
    finished = [record for one in groups for record in one.finished]
    lines = []
    for key in measures:
        without = sum(record.numbers.get(key) is None for record in finished)
        if without:
            why = " (target not reached, or none set)" if "_to_target" in key else ""
            rest = "; (k) behind a mean: it is over k runs" if without < len(finished) else ""
            rest += ", those that reached it, so it is too low" if why and rest else ""
            lines.append(f"{measure_title(key)}: {without} of {len(finished)} finished runs have none{why}{rest}.")
    return lines


def _settings(values: dict[str, set[str | None]]) -> str:
    """``training.lr (0.1, 0.01) and 3 more settings``."""
    named = [f"{key} ({_listed(values[key])})" for key in list(values)[:_MAX_NAMED]]
    rest = len(values) - len(named)
    return ", ".join(named) + (f" and {rest} more settings" if rest else "")


def _listed(values: Iterable[str | None]) -> str:
    texts = ["(absent)" if value is None else value[:24] for value in sorted(values, key=sort_key)]
    return ", ".join(texts[:_MAX_NAMED]) + ", ..." * (len(texts) > _MAX_NAMED)
