"""What a table of temperatures says, in sentences: paired differences over seeds with their 95% intervals."""

from __future__ import annotations

from collections.abc import Callable

from knot_runner.report.cases import Setting
from knot_runner.report.chilling import Sweep
from knot_runner.report.stats import mean_interval
from knot_runner.report.text import number


def verdicts(case: str, sweep: Sweep, aimed: bool) -> list[str]:
    """The sentences of one case, for each group of rows that differ in the temperature alone; ``aimed``: with those on
    rounds to target."""
    return [
        line
        for other in dict.fromkeys(key.other for key in sweep.courses)
        for line in _of_group(case, sweep, [key for key in sweep.courses if key.other == other], aimed)
    ]


def _of_group(case: str, sweep: Sweep, keys: list[Setting], aimed: bool) -> list[str]:
    cold = [key for key in keys if not key.control and key.temperature < 1]
    if not cold:
        return []
    coldest = min(cold)
    controlled = [key for key in cold if Setting(key.temperature, True, key.other) in sweep.courses]
    lines = [_accuracy(case, sweep, coldest)]
    if aimed:
        lines = [_speed(case, sweep, coldest), *lines, *(_control(case, sweep, key) for key in controlled)]
    return [line for line in lines if line]


def _speed(case: str, sweep: Sweep, key: Setting) -> str:
    ratios = _paired(sweep, key, Sweep.speedup)
    if not ratios:
        return ""
    mean, half = mean_interval(ratios)
    fast = f"{case}: {key.name} reaches the target {_band(mean, half, 2)} times as fast as T=1"
    return f"{fast} ({_seeds(ratios)}){_doubt(mean - 1, half)}."


def _accuracy(case: str, sweep: Sweep, key: Setting) -> str:
    gains = [100 * value for value in _paired(sweep, key, Sweep.delta)]
    if not gains:
        return ""
    mean, half = mean_interval(gains)
    gain = f"{case}: accuracy of {key.name} less that of T=1: {_band(mean, half, 2, True)} points"
    return f"{gain} ({_seeds(gains)}){_doubt(mean, half)}."


def _control(case: str, sweep: Sweep, key: Setting) -> str:
    """What of a chilled run's rounds a larger rate alone explains."""
    twin = Setting(key.temperature, True, key.other)
    pairs = [(sweep.rounds(twin, seed), sweep.rounds(key, seed)) for seed in sweep.courses[key]]
    there = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not sweep.courses[twin] or not sweep.courses[key]:
        return ""
    if not there:
        return f"{case}: {twin.name} and {key.name} have no seed in which both reach the target."
    gaps = [float(one - other) for one, other in there]
    mean, half = mean_interval(gaps)
    own = _band(*mean_interval([float(one) for one, _ in there]), 1)
    end = _doubt(mean, half) or f", so {key.name if mean > 0 else 'the larger rate alone'} is the faster"
    told = f"{case}: {twin.name} reaches the target in {own} rounds: {_band(mean, half, 1, True)} against {key.name}"
    return f"{told} ({_seeds(gaps)}){end}."


def _paired(sweep: Sweep, key: Setting, read: Callable[[Sweep, Setting, int], float | None]) -> list[float]:
    values = (read(sweep, key, seed) for seed in sweep.courses[key])
    return [value for value in values if value is not None]


def _doubt(mean: float, half: float | None) -> str:
    """What to add where the interval of a difference covers 0, or where there is none."""
    if half is None:
        return ": undecided, one seed has no interval"
    return ": undecided, the interval covers no difference" if abs(mean) <= half else ""


def _band(mean: float, half: float | None, digits: int, signed: bool = False) -> str:
    plus = "+" if signed and round(mean, digits) > 0 else ""
    return f"{plus}{number(mean, digits)}" + (f" ± {number(half, digits)}" if half is not None else "")


def _seeds(values: list[float]) -> str:
    return f"{len(values)} seed" + ("s" if len(values) != 1 else "")
