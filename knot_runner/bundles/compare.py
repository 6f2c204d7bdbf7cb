"""Compares a recorded run with its rerun, by round logs and the numbers of their results.

The verdict is the strictest that holds. ``the same bits``: all numbers and the bytes of weights and predictions are
equal. ``within rounding``: integers and names are equal, other numbers agree to :data:`RELATIVE` of their size or
:data:`ABSOLUTE`. ``within the interval``: accuracy on all test examples lies in the 95% Wilson interval of the recorded
one. ``not the same``: none of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.strict import content_of
from knot_runner.metrics import ACCURACY
from knot_runner.records import CONFIG_FILE, RESULT_FILE, ROUNDS_FILE
from knot_runner.report.statistics.intervals import wilson
from knot_runner.results.base import RunResult, TrainTest
from knot_runner.util.files import LogRow

Likeness = Literal["the same bits", "within rounding", "within the interval", "not the same"]
#: Numbers that differ by less than one of these differ by rounding (other instructions, threads, engines).
RELATIVE, ABSOLUTE = 1e-3, 1e-4
#: Keys, at any depth, that describe how, when and where a run was made and what it read, not its results.
PASSING = {
    *("seconds", "device", "threads", "engine", "notes"),
    *("code", "plugins", "versions", "files", "data", "digest", "run_id", "artifact", "artifacts", "made_by", "commit"),
}
#: Sealed files that contain times or folders; their rows and keys are compared instead of their bytes.
NOT_BY_BYTES = {CONFIG_FILE, RESULT_FILE, ROUNDS_FILE}
#: Maximum number of differences shown.
MAX_DIFFERENCES = 3
#: Maximum characters of a value or path in such a line.
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class JudgedAccuracy:
    """An accuracy as recorded (``was``) over ``count`` test examples, and ``now``."""

    name: str
    was: float
    now: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the recorded accuracy."""
        return wilson(self.was, self.count)

    def line(self) -> str:
        """The accuracy as a line of text."""
        low, high = self.interval
        text = f"accuracy {self.name}: {self.now:.4f} now; {self.was:.4f} on record"
        return f"{text}, 95% interval [{low:.4f}, {high:.4f}]"


@dataclass(frozen=True)
class Comparison:
    """The verdict and its basis. ``rounds``: number of log rows compared; ``numbers``: of result values; ``files``: of
    files compared by bytes; ``differences``: lines, largest first; ``intervals``: lines on accuracies and
    their intervals."""

    likeness: Likeness
    rounds: int
    numbers: int
    files: int
    differences: list[str]
    intervals: list[str]


def compare_whole(was: RunResult, rows: Sequence[LogRow], now: RunResult, new_rows: Sequence[LogRow]) -> Comparison:
    """Compare whole runs: results ``was`` (recorded) and ``now``, and their log rows."""
    pairs = [*_pairs(content_of(was), content_of(now), ""), *_pairs(list(rows), list(new_rows), "rounds")]
    names = sorted({*_digests(was), *_digests(now)})
    unlike = [name for name in names if _digests(was).get(name) != _digests(now).get(name)]
    logged = sum(path.startswith("rounds[") for path, _, _ in pairs)
    return _compared(pairs, accuracies(was, now), unlike, len(rows), len(pairs) - logged, len(names))


def compare_rounds(was: RunResult, rows: Sequence[LogRow], new_rows: Sequence[LogRow]) -> Comparison:
    """Compare first rounds: recorded ``rows`` and those of a run cut after as many rounds; ``was``: the recorded
    result. The accuracy of the last round that both have measured is judged."""
    count, judged = _test_examples(was).get("ALL", 0), []
    for number, (old, new) in enumerate(zip(rows, new_rows, strict=False), 1):
        if count > 0 and _is_share(old.get(ACCURACY)) and _is_share(new.get(ACCURACY)):
            judged = [JudgedAccuracy(f"of round {number}", old[ACCURACY], new[ACCURACY], count)]
    return _compared(_pairs(list(rows), list(new_rows), "rounds"), judged, [], len(rows), 0, 0)


def accuracies(was: RunResult, now: RunResult) -> list[JudgedAccuracy]:
    """The accuracies in both results for which the recorded one states the number of test examples: over all test
    examples if there is such a one, since many small parties, whose intervals each miss one time in twenty, must not
    decide; else of each data set."""
    tests, old, new = _test_examples(was), _accuracy(was), _accuracy(now)
    names = ["ALL"] if "ALL" in old else list(old)
    return [
        JudgedAccuracy(name, old[name], new[name], tests[name])
        for name in names
        if name in new and tests.get(name, 0) > 0
    ]


def _accuracy(result: RunResult) -> dict[str, float]:
    """Data set -> accuracy, where there is one."""
    return {name: value for name, value in result.metrics.get(ACCURACY, {}).items() if value is not None}


def _test_examples(result: RunResult) -> dict[str, int]:
    """Data set or ALL -> number of test examples."""
    if isinstance(result.datasets, TrainTest):
        return {"ALL": result.datasets.test}
    counts = {name: int(sizes.test or 0) for name, sizes in (result.datasets or {}).items()}
    return counts | {"ALL": sum(counts.get(name, 0) for name in _accuracy(result) if name != "ALL")}


def _compared(
    pairs: list[tuple[str, Any, Any]],
    judged: list[JudgedAccuracy],
    unlike_files: list[str],
    rounds: int,
    numbers: int,
    files: int,
) -> Comparison:
    # in type and value: 1 differs from 1.0 and True
    unequal = [(path, old, new) for path, old, new in pairs if type(old) is not type(new) or old != new]
    unequal.sort(key=lambda pair: -_gap(pair[1], pair[2]))
    first, more = unequal[:MAX_DIFFERENCES], len(unequal) - MAX_DIFFERENCES
    lines = [f"{_shown(path)}: {_shown(old)} on record, {_shown(new)} now" for path, old, new in first]
    lines += [f"and {more} more values"] if more > 0 else []
    lines += [f"other bytes: {', '.join(unlike_files)}"] if unlike_files else []
    inside = bool(judged) and all(one.interval[0] <= one.now <= one.interval[1] for one in judged)
    if not unequal and not unlike_files:
        likeness: Likeness = "the same bits"
    elif all(_close(old, new) for _, old, new in unequal):
        likeness = "within rounding"
    else:
        likeness = "within the interval" if inside else "not the same"
    shown = [one.line() for one in judged] if likeness in ("within the interval", "not the same") else []
    return Comparison(likeness, rounds, numbers, files, lines, shown)


def _digests(result: RunResult) -> dict[str, str]:
    return {name: digest for name, digest in result.digest.items() if name not in NOT_BY_BYTES}


class _Absent:
    """Placeholder for a value that one of two runs lacks."""


ABSENT = _Absent()


def _pairs(was: Any, now: Any, path: str) -> list[tuple[str, Any, Any]]:
    """(Path, recorded value, new value) of everything in the record except :data:`PASSING`; without recursion, since
    the record may be nested arbitrarily deep. Values only in the new run do not count: a run that is cut measures its
    last round."""
    found, left = [], [(path, was, now)]
    while left:
        where, old, new = left.pop()
        parts = list(_parts(where, old, new))
        left += reversed(parts)
        if not parts and not (isinstance(old, dict | list) and type(old) is type(new)):
            found.append((where, old, new))
    return found


def _parts(where: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the (path, old, new) members of two mappings or two lists; nothing for other values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in PASSING:
                yield (f"{where}.{key}" if where else key), value, new.get(key, ABSENT)
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            there = old[number] if number < len(old) else ABSENT
            yield f"{where}[{number}]", there, new[number] if number < len(new) else ABSENT


def _close(old: Any, new: Any) -> bool:
    """Whether two unequal values differ by rounding only: both are numbers, at least one of them a float."""
    if not _is_number(old) or not _is_number(new) or (isinstance(old, int) and isinstance(new, int)):
        return False
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _gap(old: Any, new: Any) -> float:
    """Relative difference of two values; infinite unless both are numbers."""
    if not _is_number(old) or not _is_number(new):
        return math.inf
    return float(abs(old - new) / max(abs(old), abs(new), ABSOLUTE))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
