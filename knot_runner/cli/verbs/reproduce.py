"""``knot-runner reproduce``: runs the presets that decide most claims in the available time, one after another."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER, counted
from knot_runner.util.processes import on_sigterm

if TYPE_CHECKING:
    from knot_runner.cli.candidate import Candidate
    from knot_runner.cli.reproduced import PresetRow

REPRODUCE_HELP = """\
knot-runner reproduce [--hours=2] [PRESET ...] [overrides]: presets one after another, and a table of their claims

  --hours=2            for how long; the same command goes on with what is cut (0 shows the table of what is there)
  PRESET ...           these alone, also such that nobody has timed, and begun also where they do not fit the time
  --config-dir=DIR     YAML of your own; its reproduce.yaml stands in place of ours
  overrides            of every preset: paths.data=DIR, paths.out=DIR, seed=0,1,2, hardware=cpu, ...

Without names: the presets of conf/reproduce.yaml, whose minutes on two CPU cores were measured. Next is always the one
with the most claims per minute that is left of it; one without its data, or longer than the time that is left, is left
out, which is said. The table is <paths.out>/reproduced.md: data, seeds, claims that hold, fail or are undecided, time;
it is written also when SIGTERM ends the command. Exit code 1 where a preset failed.

  knot-runner reproduce --hours=2 paths.data=DIR hardware=cpu"""
REPRODUCE_FLAGS = ("--hours=2", "--config-dir=DIR")
DEFAULT_HOURS, MAX_HOURS = 2.0, 10_000.0


@dataclass
class Outcomes:
    """Outcomes so far: lines on ``failed`` and ``skipped`` presets; ``times``: seconds by candidate key.

    ``under_way``: the running preset and its start (monotonic clock)."""

    times: dict[str, float]
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    under_way: tuple[Candidate, float] | None = None


def reproduce_command(arguments: list[str]) -> int:
    """Run the presets that fit into the time, then print and write the table. Raises :class:`UserError`."""
    from knot_runner.cli.candidate import check_typed, chosen_presets
    from knot_runner.composing.overrides import config_dir_of

    began = time.monotonic()
    hours, flags, names, words = _parsed(arguments)
    check_typed(words, reads=hours > 0)
    listed = chosen_presets(names, config_dir_of(flags))
    LOGGER.info("reproduce: composing %s", counted(len(listed), "preset"))
    candidates, failed = _candidates(listed, words, flags, bool(names))
    if not candidates:
        raise UserError(f"reproduce: {failed[0] if failed else 'no preset is listed'}")
    from knot_runner.cli.reproduced import read_times

    out = candidates[0].preset.out
    outcomes = Outcomes(read_times(out), failed)
    if hours:
        _print_plan(candidates, hours)
        with on_sigterm(lambda: _end(candidates, outcomes, out)):
            _carry_out(candidates, began + 3600 * hours, outcomes, out)
    _show(candidates, outcomes, out)
    return 1 if outcomes.failed else 0


def _end(candidates: list[Candidate], outcomes: Outcomes, out: Path) -> None:
    """On SIGTERM, record the time of the running preset and write the table of finished runs."""
    if outcomes.under_way is not None:
        _add_time(*outcomes.under_way, outcomes, out)
    _write(candidates, outcomes, out)


def _parsed(arguments: list[str]) -> tuple[float, list[str], list[str], list[str]]:
    """Return (hours, flags for composing, names of presets, overrides). Raises :class:`UserError`."""
    hours, flags, names, words = DEFAULT_HOURS, [], [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--hours":
            hours = _hours(value)
        elif name == "--config-dir":
            flags.append(argument)
        elif argument.startswith("-"):
            raise UserError(
                f"{argument[:80]!r}: there is no such flag of reproduce{nearest(argument, REPRODUCE_FLAGS)}"
            )
        elif "=" in argument or argument.startswith(("+", "~")):
            words.append(argument)
        else:
            names += [name for name in argument.split(",") if name]
    return hours, flags, names, words


def _hours(value: str) -> float:
    try:
        hours = float(value)
    except ValueError:
        hours = -1.0
    if not 0 <= hours <= MAX_HOURS:
        raise UserError(f"--hours: {value[:40]!r} is not a number of hours from 0 to {MAX_HOURS:g}; 2 is the default")
    return hours


def _candidates(listed: list, words: list[str], flags: list[str], named: bool) -> tuple[list[Candidate], list[str]]:
    """(Composed candidates, one line for each preset that cannot be composed or whose claims cannot be judged)."""
    from rich.console import Console

    from knot_runner.cli.candidate import candidate
    from knot_runner.util.messages import messages_to

    found, failed = [], []
    with Console(stderr=True).status("composing presets"), messages_to(lambda _: None):
        for one in listed:
            try:
                made = candidate(one, words, flags, named)
                if made.claims or named:
                    found.append(made)
            except UserError as problem:
                failed.append(f"{one.preset}: {problem}")
    return found, failed


# ------------------------------------------------------------------------------------------------------------- the plan


def _print_plan(candidates: list[Candidate], hours: float) -> None:
    """Print the presets to run, in order."""
    from knot_runner.cli.candidate import order
    from knot_runner.report.render.terminal import TerminalColumn, output, print_line, results_grid

    columns = []
    for head in ("preset", "claims", "runs to do", "minutes, about", "data"):
        columns.append(TerminalColumn(head, right=head not in ("preset", "data"), overflow="fold"))
    rows = []
    for one in order(candidates):
        data = "absent" if one.missing else "there"
        rows.append((one.name, str(one.claims), str(one.left()), _minutes_text(one.minutes_left()), data))
    console = output()
    console.print(results_grid(columns, rows, padding=(0, 1, 0, 0)))
    print_line(console, f"for {hours:g} hours; minutes as measured on two CPU cores")


def _minutes_text(minutes: float | None) -> str:
    if minutes is None:
        return "not measured"
    return f"{minutes:.1f}" if 0 < minutes < 10 else f"{minutes:.0f}"


def _carry_out(candidates: list[Candidate], end: float, outcomes: Outcomes, out: Path) -> None:
    """Run one preset after another until ``end`` (monotonic clock); record their times and failures in ``outcomes``."""
    from knot_runner.cli.candidate import order

    waiting = []
    for one in order(candidates):
        if one.left() and one.missing:
            outcomes.skipped.append(f"{one.name}: skipped, {one.missing}")
            LOGGER.info("%s", outcomes.skipped[-1])
        elif one.left():
            waiting.append(one)
    while waiting:
        waiting = order(waiting)  # presets may share runs
        fitting = [one for one in waiting if _fits(one, end)]
        if not fitting:
            break
        waiting.remove(fitting[0])
        _carry_out_one(fitting[0], end, outcomes, out)
    for one in waiting:
        if one.left():
            outcomes.skipped.append(f"{one.name}: skipped, {_too_long(one, end)}")
            LOGGER.info("%s", outcomes.skipped[-1])


def _fits(one: Candidate, end: float) -> bool:
    """Whether the missing runs fit into the remaining time; a preset that the user named is always started."""
    minutes, left = one.minutes_left(), (end - time.monotonic()) / 60
    return left > 0 and (one.named or (minutes is not None and minutes <= left))


def _too_long(one: Candidate, end: float) -> str:
    minutes, left = one.minutes_left(), max((end - time.monotonic()) / 60, 0.0)
    takes = "its time is not measured" if minutes is None else f"about {minutes:.3g} minutes"
    return f"{takes}, and {left:.3g} are left"


def _carry_out_one(one: Candidate, end: float, outcomes: Outcomes, out: Path) -> None:
    from knot_runner.cli.candidate import CUT, run_preset

    LOGGER.info("%s: %s", one.name, counted(one.left(), "run"))
    began = time.monotonic()
    outcomes.under_way = one, began
    try:
        code = run_preset(one, end - began)
    except UserError as problem:
        outcomes.failed.append(f"{one.name}: {problem}")
        return
    finally:
        outcomes.under_way = None
    _add_time(one, began, outcomes, out)
    if code == CUT:
        LOGGER.info("%s: the time is over; the same command goes on with it", one.name)
    elif code:
        outcomes.failed.append(f"{one.name}: failed with exit code {code}, and {counted(one.left(), 'run')} left")


def _add_time(one: Candidate, began: float, outcomes: Outcomes, out: Path) -> None:
    from knot_runner.cli.reproduced import write_times

    outcomes.times[one.key] = round(outcomes.times.get(one.key, 0.0) + time.monotonic() - began, 3)
    write_times(out, outcomes.times)


def _show(candidates: list[Candidate], outcomes: Outcomes, out: Path) -> None:
    """Print and write the table of finished runs."""
    from knot_runner.cli.reproduced import partial_lines, results_table
    from knot_runner.report.render.terminal import output

    found, path = _write(candidates, outcomes, out)
    if found:
        output().print()
        output().print(results_table(found))
    for line in partial_lines(found):
        LOGGER.info("%s", line)
    for line in outcomes.failed:
        LOGGER.error("%s", line)
    print(path)


def _write(candidates: list[Candidate], outcomes: Outcomes, out: Path) -> tuple[list[PresetRow], Path]:
    """Write the table of finished runs; returns its rows and path."""
    from knot_runner.cli.reproduced import preset_row, write_results
    from knot_runner.util.files import require_writable

    rows = [preset_row(one, outcomes.times.get(one.key, 0.0)) for one in candidates]
    found = [row for row in rows if row is not None]
    begun = [
        f"{one.name}: begun, none of its {len(one.folders)} runs is finished"
        for one, row in zip(candidates, rows, strict=True)
        if row is None and one.key in outcomes.times
    ]
    require_writable(out, "paths.out")
    return found, write_results(out, found, [*begun, *outcomes.skipped, *outcomes.failed])
