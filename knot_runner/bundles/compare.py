"""How alike two runs are, the one on record and the one made again: by their round logs and the numbers of results.

Four answers, the strictest that is true. ``the same bits``: every number is equal, and so are the bytes of weights and
predictions. ``within rounding``: whole numbers and names are equal, others agree to :data:`RELATIVE` of their size or
:data:`ABSOLUTE`. ``within the interval``: accuracy on all test examples lies in the 95% Wilson interval of the
recorded one, and F1 and semantic distance in theirs where they are given. ``not the same``: none of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.provenance.code import table_of
from knot_runner.records import CONFIG_FILE, RESULT_FILE, ROUNDS_FILE
from knot_runner.report.statistics.intervals import wilson

Likeness = Literal["the same bits", "within rounding", "within the interval", "not the same"]
#: Two numbers that differ by less than one of these differ by rounding: other instructions, threads, engines.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
#: Keys that say how, when and where a run went and what it read, not what came out; at any depth.
PASSING = {
    *("seconds", "beside", "device", "threads", "engine", "notes"),
    *("code", "plugins", "versions", "files", "data", "digest", "run_id", "artefact", "artefacts", "made_by", "commit"),
}
#: Sealed files whose bytes hold times or folders, so that their rows and keys are compared in place of them.
NOT_BY_BYTES = {CONFIG_FILE, RESULT_FILE, ROUNDS_FILE}
#: Lines of differences that are shown.
MAX_DIFFERENCES = 3
#: Letters of a value or its path in such a line.
LONGEST_SHOWN = 80


@dataclass(frozen=True)
class JudgedMetric:
    """A metric on record and ``now``, and the 95% interval of the recorded one, from ``low`` to ``high``."""

    name: str
    was: float
    now: float
    low: float
    high: float

    def line(self) -> str:
        """For a person."""
        interval = f"95% interval [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.name}: {self.now:.4f} now; {self.was:.4f} on record, {interval}"


@dataclass(frozen=True)
class Comparison:
    """``rounds``: rows of the log that were compared; ``numbers``: values of the result; ``files``: compared by their
    bytes; ``differences``: the largest first, as lines; ``intervals``: metrics beside their intervals, as lines."""

    likeness: Likeness
    rounds: int
    numbers: int
    files: int
    differences: list[str]
    intervals: list[str]


def compare_whole(
    was: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    now: dict[str, Any],
    new_rows: Sequence[dict[str, Any]],
    intervals: Mapping[tuple[str, str], tuple[float, float]] | None = None,
) -> Comparison:
    """A whole run: results ``was`` (recorded) and ``now``, and the rows of their logs; ``intervals``: of other metrics
    than accuracy, by metric and data set."""
    pairs = [*_pairs(was, now, ""), *_pairs(list(rows), list(new_rows), "rounds")]
    names = sorted({*_digests(was), *_digests(now)})
    unlike = [name for name in names if _digests(was).get(name) != _digests(now).get(name)]
    logged = sum(path.startswith("rounds[") for path, _, _ in pairs)
    judged = accuracies(was, now)
    for (metric, name), interval in (intervals or {}).items():
        old, new = (table_of(table_of(result, "metrics"), metric).get(name) for result in (was, now))
        if _is_number(old) and _is_number(new):
            judged.append(JudgedMetric(f"{metric} {name}", old, new, *interval))
    return _compared(pairs, judged, unlike, len(rows), len(pairs) - logged, len(names))


def compare_rounds(
    was: dict[str, Any], rows: Sequence[dict[str, Any]], new_rows: Sequence[dict[str, Any]]
) -> Comparison:
    """The first rounds: the recorded ``rows`` and those of a run that was cut after as many; ``was``: the recorded
    result. What the last row has besides does not count, since a run measures its models after its last round."""
    pairs = _pairs(list(rows), list(new_rows), "rounds")
    tests = _test_examples(was)
    found = []
    for number, (old, new) in enumerate(zip(rows, new_rows, strict=False)):
        shares = old.get("accuracy"), new.get("accuracy")
        if tests.get("ALL", 0) > 0 and all(_is_number(share) and 0 <= share <= 1 for share in shares):
            found.append(_judged_share(f"of round {number + 1}", *shares, tests["ALL"]))
    return _compared(pairs, found[-1:], [], len(rows), 0, 0)


def judged_names(scores: Mapping[str, Any]) -> list[str]:
    """The data sets whose intervals are looked at: all together where ``scores`` has that, so that small parties, each
    with an interval that one in twenty leaves, do not decide; else each."""
    return ["ALL"] if "ALL" in scores else list(scores)


def accuracies(was: dict[str, Any], now: dict[str, Any]) -> list[JudgedMetric]:
    """The accuracy (:func:`judged_names`) that both results have, where the recorded one says of how many test examples
    it is."""
    tests = _test_examples(was)
    old, new = _accuracy(was), _accuracy(now)
    names = [name for name in judged_names(old) if name in new and tests.get(name, 0) > 0]
    return [_judged_share(name, old[name], new[name], tests[name]) for name in names]


def _judged_share(name: str, old: float, new: float, count: int) -> JudgedMetric:
    return JudgedMetric(f"accuracy {name}", old, new, *wilson(old, count))


def _accuracy(result: dict[str, Any]) -> dict[str, float]:
    """Data set -> accuracy, as far as it can be one."""
    row = table_of(table_of(result, "metrics"), "accuracy")
    return {name: value for name, value in row.items() if _is_number(value) and 0 <= value <= 1}


def _test_examples(result: dict[str, Any]) -> dict[str, int]:
    """Data set -> its test examples, and ALL of them."""
    sizes = table_of(result, "datasets")
    if _is_number(sizes.get("test")):
        return {"ALL": int(sizes["test"])}
    own = {name: table_of(sizes, name).get("test") for name in sizes}
    counts = {name: int(count) for name, count in own.items() if _is_number(count)}
    return counts | {"ALL": sum(counts.get(name, 0) for name in _accuracy(result) if name != "ALL")}


def _compared(
    pairs: list[tuple[str, Any, Any]],
    judged: list[JudgedMetric],
    unlike_files: list[str],
    rounds: int,
    numbers: int,
    files: int,
) -> Comparison:
    unequal = [(path, old, new) for path, old, new in pairs if not _equal(old, new)]
    unequal.sort(key=lambda pair: -_gap(pair[1], pair[2]))
    first, more = unequal[:MAX_DIFFERENCES], len(unequal) - MAX_DIFFERENCES
    lines = [f"{_shown(path)}: {_shown(old)} on record, {_shown(new)} now" for path, old, new in first]
    lines += [f"and {more} more values"] if more > 0 else []
    lines += [f"other bytes: {', '.join(unlike_files)}"] if unlike_files else []
    inside = bool(judged) and all(one.low <= one.now <= one.high for one in judged)
    if not unequal and not unlike_files:
        likeness: Likeness = "the same bits"
    elif all(_close(old, new) for _, old, new in unequal):
        likeness = "within rounding"
    else:
        likeness = "within the interval" if inside else "not the same"
    shown = [one.line() for one in judged] if likeness in ("within the interval", "not the same") else []
    return Comparison(likeness, rounds, numbers, files, lines, shown)


def _digests(result: dict[str, Any]) -> dict[str, str]:
    return {name: digest for name, digest in result["digest"].items() if name not in NOT_BY_BYTES}


class _Absent:
    """Stands for a value that one of two runs does not have."""


ABSENT = _Absent()


def _pairs(was: Any, now: Any, path: str) -> list[tuple[str, Any, Any]]:
    """(Path, recorded value, that of now) of all that the record has, but for :data:`PASSING`; without recursion, since
    the record may be nested as deep as anybody likes. What only the new run has is of a later version."""
    found, left = [], [(path, was, now)]
    while left:
        where, old, new = left.pop()
        parts = list(_parts(where, old, new))
        left += reversed(parts)
        if not parts and not (isinstance(old, dict | list) and type(old) is type(new)):
            found.append((where, old, new))
    return found


def _parts(where: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """What two mappings or two lists hold; nothing of other values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in PASSING:
                yield (f"{where}.{key}" if where else key), value, new.get(key, ABSENT)
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            there = old[number] if number < len(old) else ABSENT
            yield f"{where}[{number}]", there, new[number] if number < len(new) else ABSENT


def _equal(old: Any, new: Any) -> bool:
    """Whether two values are the same; 1 is not 1.0, nor True."""
    return type(old) is type(new) and old == new


def _close(old: Any, new: Any) -> bool:
    """Whether two values differ by rounding alone: of the values that are not equal, numbers of which one at least has
    a fraction or an exponent."""
    if not _is_number(old) or not _is_number(new) or (isinstance(old, int) and isinstance(new, int)):
        return False
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _gap(old: Any, new: Any) -> float:
    """How far two values are apart, by their size; infinite where they are not both numbers."""
    if not _is_number(old) or not _is_number(new):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new), ABSOLUTE)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
