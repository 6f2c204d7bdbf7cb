"""Comparison of a recorded run with a rerun.

The results and the rows of the logs are compared. The verdict is the strictest one that applies:

- ``the same bits``: all numbers are equal, and so are the bytes of weights and predictions.
- ``within rounding``: integers and names are equal. Each other number has a relative difference of at most
  :data:`RELATIVE` or an absolute difference of at most :data:`ABSOLUTE`.
- ``within the interval``: the accuracy of the rerun lies in the 95% Wilson interval of the recorded accuracy.
- ``not the same``: no other verdict applies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from knot_runner.config.strict import content_of
from knot_runner.metrics import ACCURACY
from knot_runner.records import CONFIG_FILE, RESULT_FILE, ROUNDS_FILE
from knot_runner.results import RunResult, TrainTest
from knot_runner.util.files import LogRow

Likeness = Literal["the same bits", "within rounding", "within the interval", "not the same"]
#: Two numbers count as equal up to rounding if their relative difference is at most RELATIVE, or their absolute
#: difference at most ABSOLUTE. Rounding differs with CPU instructions, threads and engines.
RELATIVE = 1e-3
ABSOLUTE = 1e-4
#: Keys, at any depth, that are not compared. They describe how, when and where a run was computed, and its input files.
PASSING = {
    *("seconds", "device", "threads", "engine", "notes"),
    *("code", "plugins", "versions", "files", "data", "digest", "run_id", "artifact", "artifacts", "made_by", "commit"),
}
#: Files whose bytes are not compared, because they contain times or folders. Their rows and keys are compared instead.
NOT_BY_BYTES = {CONFIG_FILE, RESULT_FILE, ROUNDS_FILE}
#: Maximum number of differences shown.
MAX_DIFFERENCES = 3
#: Maximum characters of a value or path in a line that describes a difference.
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class Comparison:
    """The verdict of a comparison, and the evidence for it.

    Attributes:
        likeness: The verdict.
        differences: Lines that describe the differences, largest first.
        intervals: One line per compared accuracy, with the 95% interval of the recorded accuracy.
        extent: Text that states how many result values and files were compared; "" if only log rows were compared.
    """

    likeness: Likeness
    differences: list[str]
    intervals: list[str]
    extent: str = ""


#: (path, recorded value, new value)
ValuePair = tuple[str, object, object]
#: (whether the new accuracy lies in the interval of the recorded accuracy, line with both accuracies and the interval)
Judged = tuple[bool, str]


def compare_whole(was: RunResult, rows: Sequence[LogRow], now: RunResult, new_rows: Sequence[LogRow]) -> Comparison:
    """Compare a recorded run with a complete rerun.

    Args:
        was: The recorded result.
        rows: The recorded rows of the log.
        now: The result of the rerun.
        new_rows: The rows of the rerun's log.
    """
    values = list(_pairs(content_of(was), content_of(now)))
    pairs = [*values, *_pairs(list(rows), list(new_rows), "rounds")]
    old = _digests(was)
    new = _digests(now)
    names = sorted({*old, *new})
    unlike = [name for name in names if old.get(name) != new.get(name)]
    comparison = _compared(pairs, _judged_accuracies(was, now), unlike)
    extent = f", {len(values)} values of the result and {len(names)} files"
    return dataclasses.replace(comparison, extent=extent)


def compare_rounds(was: RunResult, rows: Sequence[LogRow], new_rows: Sequence[LogRow]) -> Comparison:
    """Compare a recorded run with a rerun of its first rounds only.

    For the verdict ``within the interval``, only one round is compared: the last round with an accuracy in both logs.

    Args:
        was: The recorded result.
        rows: The recorded log rows of the first rounds.
        new_rows: The log rows of the rerun.
    """
    count = _test_examples(was).get("ALL", 0)
    judged = []
    for number, (old, new) in enumerate(zip(rows, new_rows, strict=False), 1):
        if count > 0 and _is_share(old.get(ACCURACY)) and _is_share(new.get(ACCURACY)):
            judged = [_judged(f"of round {number}", old[ACCURACY], new[ACCURACY], count)]
    return _compared(list(_pairs(list(rows), list(new_rows), "rounds")), judged, [])


def _judged_accuracies(was: RunResult, now: RunResult) -> list[Judged]:
    """Compare the accuracies for which the number of test examples is recorded.

    Use the accuracy over all test examples if it is recorded, otherwise the accuracy of each data set. With many small
    data sets, separate intervals would fail by chance: even for an equivalent run, one in twenty accuracies lies
    outside.
    """
    tests = _test_examples(was)
    old = _accuracy(was)
    new = _accuracy(now)
    names = list(old)
    if "ALL" in old:
        names = ["ALL"]
    judged = []
    for name in names:
        if name in new and tests.get(name, 0) > 0:
            judged.append(_judged(name, old[name], new[name], tests[name]))
    return judged


def _judged(name: str, was: float, now: float, count: int) -> Judged:
    """Compare the accuracies ``was`` (recorded) and ``now`` (rerun), measured on ``count`` test examples."""
    from scipy.stats import binomtest  # here, since scipy takes a third of a second to import

    low, high = binomtest(round(was * count), count).proportion_ci(0.95, "wilson")
    line = f"accuracy {name}: {now:.4f} now; {was:.4f} recorded, with 95% interval [{low:.4f}, {high:.4f}]"
    return low <= now <= high, line


def _accuracy(result: RunResult) -> dict[str, float]:
    """Return data set -> accuracy, for data sets with an accuracy."""
    return {name: value for name, value in result.metrics.get(ACCURACY, {}).items() if value is not None}


def _test_examples(result: RunResult) -> dict[str, int]:
    """Return data set or ALL -> number of test examples."""
    if isinstance(result.datasets, TrainTest):
        return {"ALL": result.datasets.test}
    counts = {name: int(sizes.test or 0) for name, sizes in (result.datasets or {}).items()}
    return counts | {"ALL": sum(counts.get(name, 0) for name in _accuracy(result) if name != "ALL")}


def _compared(pairs: list[ValuePair], judged: list[Judged], unlike_files: list[str]) -> Comparison:
    # equal in type and value: 1 differs from 1.0 and True
    unequal = [(path, old, new) for path, old, new in pairs if type(old) is not type(new) or old != new]
    unequal.sort(key=lambda pair: -_gap(pair[1], pair[2]))
    lines = [
        f"{_shown(path)}: {_shown(old)} recorded, {_shown(new)} now" for path, old, new in unequal[:MAX_DIFFERENCES]
    ]
    if len(unequal) > MAX_DIFFERENCES:
        lines.append(f"and {len(unequal) - MAX_DIFFERENCES} more values")
    if unlike_files:
        lines.append(f"different files: {', '.join(unlike_files)}")
    if not unequal and not unlike_files:
        return Comparison("the same bits", lines, [])
    if all(_close(old, new) for _, old, new in unequal):
        return Comparison("within rounding", lines, [])
    likeness: Likeness = "not the same"
    if judged and all(is_inside for is_inside, _ in judged):
        likeness = "within the interval"
    return Comparison(likeness, lines, [line for _, line in judged])


def _digests(result: RunResult) -> dict[str, str]:
    return {name: digest for name, digest in result.digest.items() if name not in NOT_BY_BYTES}


#: Placeholder for a value that one of two runs lacks.
ABSENT = object()


def _pairs(was: object, now: object, path: str = "") -> Iterator[ValuePair]:
    """Yield (path, recorded value, new value) for everything in the record except :data:`PASSING`.

    A value that only the new run has is ignored, because a shortened run also evaluates its last round.
    """
    if isinstance(was, dict) and isinstance(now, dict):
        for key, value in was.items():
            if key not in PASSING:
                yield from _pairs(value, now.get(key, ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(was, list) and isinstance(now, list):
        for number, (old, new) in enumerate(itertools.zip_longest(was, now, fillvalue=ABSENT)):
            yield from _pairs(old, new, f"{path}[{number}]")
    else:
        yield path, was, now


def _close(old: object, new: object) -> bool:
    """Return whether two unequal values differ by rounding only: both are numbers, at least one of them a float."""
    if not _is_number(old) or not _is_number(new) or (isinstance(old, int) and isinstance(new, int)):
        return False
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _gap(old: object, new: object) -> float:
    """Return the relative difference of two values; infinite unless both are numbers."""
    if not _is_number(old) or not _is_number(new):
        return math.inf
    return float(abs(old - new) / max(abs(old), abs(new), ABSOLUTE))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _shown(value: object) -> str:
    if value is ABSENT:
        return "absent"
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.9g}"
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:LONGEST_SHOWN]}..."
    return text
