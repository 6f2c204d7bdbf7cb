"""``knot-runner reproduce``: runs presets within a time limit. Those with the most claims per minute come first."""

from __future__ import annotations

import argparse
import functools
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from knot_runner.cli.verbs.preset import Preset, preset_of
from knot_runner.config.plugins import PAPERS
from knot_runner.config.settings.sizes import Steps
from knot_runner.config.strict import AtMost, build
from knot_runner.data.preflight import no_data
from knot_runner.records import read_result
from knot_runner.report.render.terminal import TerminalColumn, output, results_grid
from knot_runner.report.render.text import duration, escape_markdown
from knot_runner.util.config_yaml import config_folder, read_config
from knot_runner.util.errors import LOGGER, UserError, counted, messages_to
from knot_runner.util.files import require_writable, write_atomic
from knot_runner.util.processes import on_signal

if TYPE_CHECKING:
    from knot_runner.report.claims.verdicts import Verdict

LIST_FILE = "reproduce.yaml"
TABLE_FILE = "reproduced.md"
HEADS = ("preset", "data", "runs", "seeds", "hold", "fail", "undecided", "time")


@dataclass(frozen=True)
class ListedPreset:
    """A preset in a file ``reproduce.yaml``.

    Attributes:
        preset: Name of the preset.
        words: Overrides that are added to the preset's command.
        runs: Number of runs of the preset.
        minutes: Recorded total time of these runs on two CPU cores, in minutes; None if unknown.
    """

    preset: str
    words: list[str] = field(default_factory=list)
    runs: Steps = 1
    minutes: Annotated[float, AtMost(10**6)] | None = None


@dataclass(frozen=True)
class PresetList:
    """The content of ``reproduce.yaml``."""

    presets: list[ListedPreset]


@dataclass(frozen=True)
class Candidate:
    """A composed preset that ``knot-runner reproduce`` may run.

    Attributes:
        listed: The entry of the preset in ``reproduce.yaml``.
        preset: The composed preset.
        words: Flags and overrides of the preset's command.
        named: Whether the user named the preset on the command line.
    """

    listed: ListedPreset
    preset: Preset
    words: list[str]
    named: bool

    @functools.cached_property
    def folders(self) -> dict[Path, int]:
        """Return a dict from the folder of each run to the seed of the run."""
        return {job.folder: job.settings.seed for job in self.preset.jobs}

    @functools.cached_property
    def claims(self) -> int:
        """Return the number of claims that depend on the candidate's runs."""
        return len(self.verdicts())

    def left(self) -> int:
        """Return the number of runs without a result."""
        return sum(read_result(folder) is None for folder in self.folders)

    def minutes_left(self) -> float:
        """Return the estimated minutes for the runs without a result; infinity if no time is recorded."""
        minutes = self.listed.minutes
        if minutes is None:
            return math.inf
        return minutes * self.left() / self.listed.runs

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on the claims that depend on the candidate's runs. Raises :class:`UserError`."""
        from knot_runner.cli.show import verdicts_of

        if not self.preset.spec.get("claims"):
            return []
        return [verdict for verdict in verdicts_of(self.preset) if verdict.runs]


def reproduce_command(options: argparse.Namespace) -> int:
    """Run the presets that fit into the time limit, then print and write the table of their claims.

    Returns:
        The exit code: 1 if a preset failed, otherwise 0.

    Raises:
        UserError: No preset can be composed, or the output folder is not writable.
    """
    end = time.monotonic() + 3600 * options.hours
    overrides = [word for word in options.words if "=" in word or word.startswith("~")]
    names = [word for word in options.words if word not in overrides]
    candidates, problems = _candidates(names, [*options.flags, *overrides], options.config_dir)
    failures = len(problems)
    out = candidates[0].preset.out
    require_writable(out, "paths.output_dir")
    for candidate in candidates:
        if not options.hours:
            break
        problem, code = _execute(candidate, end)
        failures += code
        if problem:
            problems.append(f"{candidate.preset.name}: {problem}")
            LOGGER.info("%s", problems[-1])
    _show(candidates, problems, out)
    return min(failures, 1)


def listed_presets(config_dir: str | None = None) -> list[ListedPreset]:
    """Return the presets listed in ``conf/reproduce.yaml`` and in the ``reproduce.yaml`` of each paper.

    If ``config_dir`` has a ``reproduce.yaml``, return only the presets in that file.

    Raises:
        UserError: A file cannot be read, or a key is invalid. The message names the file and the key.
    """
    paths = [Path(config_dir or config_folder(), LIST_FILE)]
    if config_dir is None or not paths[0].exists():
        paths = [config_folder() / LIST_FILE, *sorted(PAPERS.glob(f"*/{LIST_FILE}"))]
    presets = []
    for path in paths:
        try:
            presets += build(PresetList, read_config(path), "").presets
        except (ValueError, OSError, UserError) as problem:
            raise UserError(str(problem), str(path)) from None
    return presets


def _candidates(names: list[str], typed: list[str], config_dir: str | None) -> tuple[list[Candidate], list[str]]:
    """Return the candidates by claims per minute, and a line for each preset that cannot be composed."""
    listed = {entry.preset: entry for entry in listed_presets(config_dir)}
    composed = []
    failed = []
    LOGGER.info("reproduce: composing %s", counted(len(names or listed), "preset"))
    with messages_to(lambda _: None):
        for name in names or listed:
            try:
                entry = candidate(listed.get(name, ListedPreset(name)), typed, bool(names))
                if entry.claims or names:
                    composed.append(entry)
            except UserError as problem:
                failed.append(f"{name}: composing the preset failed: {problem}")
    if not composed:
        raise UserError((failed or ["no preset to reproduce"])[0])
    for line in failed:
        LOGGER.error("%s", line)
    return order(composed), failed


def candidate(listed: ListedPreset, typed: Sequence[str], named: bool) -> Candidate:
    """Compose a preset and return it as a candidate.

    Args:
        listed: The entry of the preset in ``reproduce.yaml``.
        typed: Flags and overrides that the user typed. They replace overrides of the same key in ``listed.words``.
        named: Whether the user named the preset.

    Raises:
        UserError: The preset cannot be composed with these flags and overrides.
    """
    keys = {word.lstrip("+~").partition("=")[0] for word in typed}
    words = [*typed, *(word for word in listed.words if word.partition("=")[0] not in keys)]
    return Candidate(listed, preset_of(listed.preset, words), words, named)


def order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Sort candidates by ``claims / minutes_left()``, largest ratio first."""
    return sorted(candidates, key=lambda candidate: -candidate.claims / max(candidate.minutes_left(), 0.01))


def _execute(candidate: Candidate, end: float) -> tuple[str, int]:
    """Run a preset's missing runs until ``end`` (monotonic clock).

    Returns:
        Why some runs are still missing, or "", and 1 if the preset's command failed, otherwise 0.
    """
    if not candidate.left():
        return "", 0
    if problem := no_data(job.settings for job in candidate.preset.jobs):
        return f"skipped, {problem}", 0
    minutes = candidate.minutes_left()
    seconds = end - time.monotonic()
    if seconds <= 0 or not (candidate.named or 60 * minutes <= seconds):
        takes = "an unknown time"
        if math.isfinite(minutes):
            takes = f"about {minutes:.3g} minutes"
        return f"skipped, since it takes {takes}, but only {max(seconds, 0) / 60:.3g} minutes are left", 0
    LOGGER.info("%s: %s", candidate.preset.name, counted(candidate.left(), "run"))
    command = [sys.executable, "-m", "knot_runner", f"experiment={candidate.preset.name}", *candidate.words]
    code = run_for(command, candidate.preset.out / "reproduced" / f"{candidate.preset.name}.txt", seconds)
    if code is None:
        return "the time limit is reached. Repeat the command to resume", 0
    if code:
        return f"failed with exit code {code}, {counted(candidate.left(), 'run')} left", 1
    return "", 0


def run_for(command: Sequence[str], printed: Path, seconds: float) -> int | None:
    """Run ``command`` for at most ``seconds`` seconds. Return the exit code; None if the time limit was reached.

    Args:
        command: The command and its arguments.
        printed: File to which the standard output of the command is written.
        seconds: Time limit, after which SIGTERM ends the command.
    """
    printed.parent.mkdir(parents=True, exist_ok=True)
    with (
        printed.open("w", encoding="utf-8") as file,
        subprocess.Popen(command, stdout=file) as process,
        on_signal(process.terminate),
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.terminate()


def _show(candidates: Sequence[Candidate], problems: Sequence[str], out: Path) -> None:
    """Print the table of finished runs and write it as Markdown."""
    rows = [cells for candidate in candidates if (cells := _cells(candidate))]
    if rows:
        columns = [TerminalColumn(head, right=head not in ("preset", "data"), overflow="fold") for head in HEADS]
        output().print(results_grid(columns, rows, padding=(0, 1, 0, 0)))
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in rows]
    lines += ["", *(f"- {escape_markdown(problem)}" for problem in problems), ""]
    write_atomic(out / TABLE_FILE, "\n".join(lines))
    print(out / TABLE_FILE)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    """Return the row of a preset in the table; () if no run of the preset is finished."""
    data: list[str] = []
    done: Counter[int] = Counter()
    seconds = 0.0
    for folder, seed in candidate.folders.items():
        if result := read_result(folder):
            name = f"{result.task} ({result.source or 'none'})"
            if name not in data:
                data.append(name)
            done[seed] += 1
            seconds += result.seconds.total or 0
    if not data:
        return ()
    planned = Counter(candidate.folders.values())
    seeds = sum(done[seed] == count for seed, count in planned.items())
    verdicts = Counter(verdict.verdict for verdict in candidate.verdicts())
    hold, fail, refused = (verdicts.pop(name, 0) for name in ("holds", "does not hold", "refused"))
    others = str(verdicts.total())
    if refused:
        others += f" + {refused} refused"
    return (
        candidate.preset.name, ", ".join(data), f"{done.total()} of {len(candidate.folders)}",
        f"{seeds} of {len(planned)}", str(hold), str(fail), others, duration(seconds),
    )  # fmt: skip
