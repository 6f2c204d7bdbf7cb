"""The best of searched settings: one candidate per value of them, judged by its mean over the same seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from knot_runner.report.compare.groups import RunGroup, group_runs
from knot_runner.report.compare.half import HalfMeasures, halve
from knot_runner.report.compare.measures import Direction, direction, measure_title, resolve_measure
from knot_runner.report.compare.records import RunRecord
from knot_runner.util.errors import UserError

HalfSelection = Literal["test", "half"]


@dataclass(frozen=True)
class Rule:
    """The highest or lowest mean of ``measure`` among the values of ``over``; on all test items or on half of them."""

    measure: str
    better: Direction
    over: tuple[str, ...]
    split: HalfSelection


@dataclass(frozen=True)
class Choice:
    """What was chosen in ``outer``, a group of all but the searched settings: the runs of the best candidate at the
    seeds compared, with ``values`` of the searched settings; ``fit`` of ``candidates`` could be chosen.

    ``selected``: the runs with the numbers that they were selected by, ``reported``: with those to report."""

    outer: RunGroup
    values: tuple[str | None, ...]
    selected: tuple[RunRecord, ...]
    reported: tuple[RunRecord, ...]
    fit: int
    candidates: int


def selection_rule(text: str, over: tuple[str, ...], split: HalfSelection, measures: Sequence[str]) -> Rule:
    """``accuracy``, ``min:KEY`` or ``max:KEY``. Raises :class:`UserError` where the better way is not known."""
    asked, colon, name = text.partition(":")
    if not colon:
        asked, name = "", text
    elif asked not in ("min", "max"):
        raise UserError(f"--best={text}: min:KEY or max:KEY would be right")
    key = resolve_measure(name, measures, "--best")
    better = {"min": "lower", "max": "higher"}.get(asked) or direction(key)
    if better is None:
        raise UserError(f"--best={text}: which is better? --best=max:{name} or --best=min:{name}")
    return Rule(key, better, over, split)


def choose(groups: Sequence[RunGroup], asked: Rule) -> list[Choice]:
    """The choice in each of ``groups``. Raises :class:`UserError` when halves are asked for that cannot be had."""
    return [_choose(one, asked) for one in groups]


def _choose(outer: RunGroup, asked: Rule) -> Choice:
    selecting, reporting = _views(outer, asked)
    candidates = group_runs(selecting, asked.over)
    seeds = [_seeds(one, asked.measure) for one in candidates]
    compared = _most_common([own for own in seeds if own])
    fit = [one for one, own in zip(candidates, seeds, strict=True) if own and own >= compared]
    if not fit:
        return Choice(outer, (None,) * len(asked.over), (), (), 0, len(candidates))
    sign = 1 if asked.better == "higher" else -1
    best = max(fit, key=lambda one: sign * _mean(_at(one.finished, compared), asked.measure))  # ties: the first
    chosen = _at(best.finished, compared)
    folders = [record.folder for record in chosen]
    return Choice(outer, best.key, chosen, tuple(reporting[f] for f in folders), len(fit), len(candidates))


def _views(outer: RunGroup, asked: Rule) -> tuple[list[RunRecord], Mapping[object, RunRecord]]:
    """The runs as they are selected by, and, by folder, as they are reported."""
    if asked.split == "test":
        return list(outer.records), {record.folder: record for record in outer.records}
    halves = {record.folder: halve(record) for record in outer.finished}
    _check(outer, asked, halves)
    selecting = [
        replace(record, numbers=halves[record.folder].selecting) if record.state == "done" else record
        for record in outer.records
    ]
    return selecting, {r.folder: replace(r, numbers=halves[r.folder].reporting) for r in outer.finished}


def _check(outer: RunGroup, asked: Rule, halves: Mapping[object, HalfMeasures]) -> None:
    first = next(iter(halves.values()), None)
    other = next((folder for folder, own in halves.items() if first and own.items != first.items), None)
    if other is not None:
        raise UserError(
            f"--select=half: {outer.finished[0].folder} and {other} have other test items, or another order, "
            "so halves would overlap; a filter that leaves runs of one test set is right"
        )
    if first and asked.measure not in first.selecting:
        there = ", ".join(map(measure_title, first.selecting))
        raise UserError(f"--best={measure_title(asked.measure)}: --select=half can measure {there}")


def _seeds(one: RunGroup, measure: str) -> frozenset[int]:
    """Seeds at which a candidate has the number."""
    return frozenset(record.seed for record in one.finished if record.numbers.get(measure) is not None)


def _most_common(seeds: list[frozenset[int]]) -> frozenset[int]:
    """The seeds that most candidates have; of several such sets the largest."""
    if not seeds:
        return frozenset()
    counted = Counter(seeds)
    return max(counted, key=lambda own: (counted[own], len(own), sorted(own, reverse=True)))


def _at(records: Sequence[RunRecord], seeds: frozenset[int]) -> tuple[RunRecord, ...]:
    return tuple(record for record in records if record.seed in seeds)


def _mean(records: Sequence[RunRecord], measure: str) -> float:
    values = [float(v) for record in records if (v := record.numbers.get(measure)) is not None]
    return sum(values) / len(values)


def selection_line(asked: Rule, choices: Sequence[Choice], keys: Sequence[str]) -> list[str]:
    """How it was selected, in words, and what that does to the numbers."""
    per = f" per {', '.join(keys)}" if keys else ""
    tried = sorted({choice.candidates for choice in choices})
    number = f"{tried[0]}" if len(tried) == 1 else f"{tried[0]} to {tried[-1]}"
    lines = [
        f"Selected{per}: of {number} settings of {', '.join(asked.over)}, the one with the {_most(asked)} mean of "
        f"{measure_title(asked.measure)} over the seeds that most of them have; of equals the first. "
        "Whether it is better than the next is not judged."
    ]
    short = sum(choice.candidates - choice.fit for choice in choices)
    if short:
        lines.append(f"{short} settings could not be chosen: a seed of theirs has no number (diverged or not there).")
    if asked.split == "half":
        return [
            *lines,
            "Selected on one half of the test items ('selected by'), drawn once and the same for all runs; reported on "
            "the other half. Seeds are the same in both, so luck in training is not removed.",
        ]
    return [
        *lines,
        "Selected on the test items that are reported: optimistic, the more so the more settings are tried. "
        "--select=half selects on one half of the test items and reports on the other.",
    ]


def _most(asked: Rule) -> str:
    return "highest" if asked.better == "higher" else "lowest"
