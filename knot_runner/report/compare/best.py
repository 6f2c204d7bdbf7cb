"""Selects the best of searched settings: one candidate per value, judged by its mean over the same seeds."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from knot_runner.metrics import METRICS, measure_all
from knot_runner.report.compare.measures import Direction, direction, measure_title, resolve_measure
from knot_runner.report.compare.settings import SEED, row_numbers, telling
from knot_runner.report.frame import RunSet
from knot_runner.report.run_folders import PREDICTIONS, RECOMPUTED_TOLERANCE, Run, predictions
from knot_runner.report.run_rows import variant
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

HalfSelection = Literal["test", "half"]
Keys = tuple[str, ...]
StoredPredictions = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Rule:
    """Selection rule: best mean of ``measure`` among the values of ``over``, on all test items or half of them."""

    measure: str
    better: Direction
    over: Keys
    split: HalfSelection


@dataclass(frozen=True)
class Choices:
    """The selection in each row, a group of runs that agree in all but the searched settings: the finished runs of the
    best candidate at the compared seeds.

    ``selected``: these runs with the numbers used for selection; ``reported``: with those to report; ``row``: the row
    of each run. ``counts`` by row: ``n``, number of these runs; ``settings``, number of candidates; ``fit``, number of
    eligible candidates."""

    selected: RunSet
    reported: RunSet
    row: pd.Series
    counts: pd.DataFrame


def selection_rule(text: str, over: Keys, split: HalfSelection, measures: Sequence[str]) -> Rule:
    """Parse ``accuracy``, ``min:KEY`` or ``max:KEY``. Raises :class:`UserError` if the better direction is unknown."""
    sense, colon, name = text.partition(":")
    if not colon:
        sense, name = "", text
    elif sense not in ("min", "max"):
        raise UserError(f"--best={text}: min:KEY or max:KEY would be right")
    key = resolve_measure(name, measures, "--best")
    better = {"min": "lower", "max": "higher"}.get(sense) or direction(key)
    if better is None:
        raise UserError(f"--best={text}: which is better? --best=max:{name} or --best=min:{name}")
    return Rule(key, better, over, split)


def searched(runs: RunSet, by: Keys | None, over: Keys) -> tuple[Keys, Keys]:
    """Return (settings that define a row, settings searched within it); if not given, the remaining settings that
    distinguish the runs.

    If ``method.name`` is searched, so are other method settings in which runs of one name differ. Raises
    :class:`UserError` if there is nothing to select from.
    """
    differing = runs.differing()
    if by is None and not over:
        differences = ", ".join(identifying_keys(differing)) or "nothing but the seed"
        raise UserError(f"--best: --over=KEY says what was searched; the runs differ in {differences}")
    if SEED in over:
        raise UserError("--over=seed: means are over seeds; --over=KEY, another setting, would be right")
    if over:
        inside = [key for key in differing if key not in over and _is_inside(key, over)]
        over = tuple(dict.fromkeys((*over, *telling(differing, [*over, *inside], kept=over))))
    else:
        over = identifying_keys(differing, by or ())
    rows = identifying_keys(differing, over) if by is None else by
    candidates = row_numbers(runs.settings, tuple(dict.fromkeys((*rows, *over)))).nunique()
    if set(over) & set(rows) or candidates == row_numbers(runs.settings, rows).nunique():
        raise UserError("--over: in no row is there more than one value of it to select from")
    return rows, over


def identifying_keys(differing: pd.DataFrame, less: Sequence[str] = ()) -> Keys:
    """A small set of the ``differing`` settings that distinguishes the runs, without the seed, ``less`` and the
    settings that ``less`` selects."""
    keys = [key for key in differing if key != SEED and key not in less and not _is_inside(key, less)]
    return tuple(telling(differing, keys))


def _is_inside(key: str, names: Sequence[str]) -> bool:
    """Whether ``key`` belongs to a group that one of ``names`` selects, as ``method.mu`` to ``method.name``."""
    return key.startswith(tuple(name.removesuffix("name") for name in names if name.endswith(".name")))


def choose(runs: RunSet, row: pd.Series, rule: Rule) -> Choices:
    """Select the best in each ``row`` of runs. Raises :class:`UserError` if halves are requested but not possible."""
    selecting, reporting = _halves(runs, row, rule) if rule.split == "half" else (runs, runs)
    table = runs.runs[["seed", "state"]].assign(row=row, candidate=row_numbers(runs.settings, rule.over))
    measured = table.join(selecting.values(rule.measure), how="inner")
    seeds = measured.groupby(["row", "candidate"])["seed"].agg(frozenset)
    compared = seeds.groupby("row").agg(_most_common)
    fit = seeds[[own >= compared[number] for (number, _), own in seeds.items()]]
    at = [seed in compared[number] for seed, number in zip(measured["seed"], measured["row"], strict=True)]
    _check_one_kind(runs, row, rule)
    means = measured.loc[at].groupby(["row", "candidate"])["value"].agg(lambda own: sum(own) / len(own)).loc[fit.index]
    if rule.better == "lower":
        means = -means
    best = set(means.groupby("row").idxmax())  # ties: the first
    chosen = [
        own.state == "done" and (own.row, own.candidate) in best and own.seed in compared[own.row]
        for own in table.itertuples()
    ]
    counts = table.groupby("row").agg(settings=("candidate", "nunique"))
    counts = counts.assign(n=row[chosen].value_counts(), fit=fit.groupby("row").size()).fillna(0).astype("int64")
    return Choices(selecting.only(chosen), reporting.only(chosen), row[chosen], counts)


def _check_one_kind(runs: RunSet, row: pd.Series, rule: Rule) -> None:
    """Raises :class:`UserError` where a row would select among numbers of several kinds."""
    kinds = runs.finished.runs["record"].map(lambda run: variant(rule.measure, run.result))
    for own in kinds.groupby(row).unique():
        if len(own) > 1:
            measure, apart = measure_title(rule.measure), "; ".join(own)
            raise UserError(
                f"--best={measure}: a row has several kinds of it ({apart}). Filter the runs, as in method.name=NAME"
            )


def _most_common(seeds: pd.Series) -> frozenset[int]:
    """The set of seeds that most candidates have; of several such sets the largest."""
    counted = Counter(seeds)
    return max(counted, key=lambda own: (counted[own], len(own), sorted(own, reverse=True)))


def selection_line(rule: Rule, choices: Choices, keys: Sequence[str]) -> list[str]:
    """A line on how the selection was made and how it biases the numbers."""
    per = f" per {', '.join(keys)}" if keys else ""
    fewest, most = choices.counts["settings"].min(), choices.counts["settings"].max()
    number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    lines = [
        f"Selected{per}: of {number} settings of {', '.join(rule.over)}, the one with the "
        f"{'highest' if rule.better == 'higher' else 'lowest'} mean of {measure_title(rule.measure)} over the seeds "
        "that most of them have; of equals the first. Whether it is better than the next is not judged."
    ]
    short = (choices.counts["settings"] - choices.counts["fit"]).sum()
    if short:
        lines.append(f"{short} settings could not be chosen: a seed of theirs has no number (diverged or not there).")
    half = (
        "Selected on one half of the test items ('selected by'), drawn once and the same for all runs; reported on "
        "the other half. Seeds are the same in both, so luck in training is not removed."
    )
    whole = (
        "Selected on the test items that are reported: optimistic, the more so the more settings are tried. "
        "--select=half selects on one half of the test items and reports on the other."
    )
    return [*lines, half if rule.split == "half" else whole]


@dataclass(frozen=True)
class HalfMeasures:
    """Dotted key (as in the result) -> value, on each half; ``items``: equal for runs tested on the same items in the
    same order, judged by their labels."""

    selecting: dict[str, float]
    reporting: dict[str, float]
    items: int


def _halves(runs: RunSet, row: pd.Series, asked: Rule) -> tuple[RunSet, RunSet]:
    """Return (``runs`` with the numbers for selection, ``runs`` with those to report), on two halves of the test items.
    Raises :class:`UserError` unless the runs of a row have the same items and the requested measure."""
    import pandas as pd

    halves: dict[int, HalfMeasures] = {}
    finished = runs.runs["record"][runs.runs["state"] == "done"]
    for _, records in finished.groupby(row):
        found = {i: halve(record) for i, record in records.items()}
        _check(records, list(found.values()), asked)
        halves |= found

    def measured(side: str) -> RunSet:
        numbers = [(i, key, value) for i, own in halves.items() for key, value in getattr(own, side).items()]
        metrics = pd.DataFrame(numbers, columns=["run", "metric", "value"]).set_index("run")
        return replace(runs, metrics=metrics.astype({"value": "float64"}))

    return measured("selecting"), measured("reporting")


def _check(records: Sequence[Run], halves: Sequence[HalfMeasures], asked: Rule) -> None:
    first, folders = halves[0], [record.job.folder for record in records]
    other = next((folder for folder, own in zip(folders, halves, strict=True) if own.items != first.items), None)
    if other is not None:
        raise UserError(
            f"--select=half: {folders[0]} and {other} have other test items, or another order, "
            "so halves would overlap; a filter that leaves runs of one test set is right"
        )
    if asked.measure not in first.selecting:
        there = ", ".join(map(measure_title, first.selecting))
        raise UserError(f"--best={measure_title(asked.measure)}: --select=half can measure {there}")


def halve(run: Run) -> HalfMeasures:
    """A finished run's F1, accuracy and semantic distance on the two halves, from its stored predictions.

    Each data set is halved by a draw that depends on its name and size alone, so it is the same for all runs. Raises
    :class:`UserError` naming the file when predictions are absent, damaged, or do not give the result's measures.
    """
    found = predictions(run)
    kept = {name: pair for name, pair in found.items() if not name.startswith("before/")}
    coordinates = _coordinates(run)
    whole = _flat(measure_all(kept, coordinates))
    stored = {key: value for key in whole if (value := run.metric(*key.split(".", 2)[1:])) is not None}
    off = [key for key, value in stored.items() if abs(whole[key] - value) > RECOMPUTED_TOLERANCE]
    if off or not stored:
        path = run.job.folder / PREDICTIONS
        raise UserError(f"{path}: does not give the result's {min(off, default='measures')}; --select=half needs it")
    parts = [_flat(measure_all(_part(kept, side), coordinates)) for side in (0, 1)]
    first, second = ({key: value for key, value in part.items() if key in stored} for part in parts)
    items = 0
    for name in sorted(kept):
        items = zlib.crc32(kept[name][1].tobytes(), zlib.crc32(name.encode(), items))
    return HalfMeasures(first, second, items)


def _coordinates(run: Run) -> np.ndarray:
    """Coordinates of the labels; zeros [C, 1] if there are none, in which case the result has no distance either."""
    labels = run.result["labels"]
    if labels.get("coordinates") is None:
        return np.zeros((len(labels["names"]), 1))
    return np.asarray(labels["coordinates"], dtype=np.float64)


def _part(found: StoredPredictions, side: int) -> StoredPredictions:
    """Half ``side`` (0 or 1) of the rows of each data set; for an odd number the first half has one row less."""
    part = {}
    for name, (probabilities, labels) in found.items():
        order = np.random.default_rng([zlib.crc32(name.encode()), len(labels)]).permutation(len(labels))
        middle = len(order) // 2
        rows = np.sort(order[middle:] if side else order[:middle])
        part[name] = probabilities[rows], labels[rows]
    return part


def _flat(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Flat dotted keys as in a result. A single data set ``test``, as in federated runs, gives ALL only."""
    return {
        f"metrics.{name}.{data}": value for name, row in table.items() if name in METRICS for data, value in row.items()
    }
