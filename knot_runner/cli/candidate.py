"""A preset to reproduce: its runs, the missing ones and their time, its claims, and whether its data are present."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from knot_runner.cli.show import references
from knot_runner.cli.verbs.preset import Preset, preset_of
from knot_runner.composing.override_errors import message_text
from knot_runner.config.strict import AtMost, build, digest, require
from knot_runner.data.preflight import missing_data
from knot_runner.data.sources import data_sets
from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.sweeps.state import status
from knot_runner.util.config_yaml import choices, config_folder, read_config
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import require_writable
from knot_runner.util.processes import GRACE_SECONDS, on_sigterm

LIST_FILE = "reproduce.yaml"


@dataclass(frozen=True)
class ListedPreset:
    """A preset and the further overrides ``words`` of its command; its ``runs`` took ``minutes`` (None: not
    measured)."""

    preset: str
    words: list[str] = field(default_factory=list)
    runs: Annotated[int, AtMost(10**6)] = 1
    minutes: Annotated[float, AtMost(10**6)] | None = None

    def __post_init__(self) -> None:
        require(self.runs >= 1, "runs", f"{self.runs} is not at least 1")
        require(self.minutes is None or self.minutes > 0, "minutes", f"{self.minutes} is not above 0")
        right = all("=" in word and not word.startswith("-") for word in self.words)
        require(right, "words", f"{self.words} are not all key=value")


@dataclass(frozen=True)
class PresetList:
    """The content of the file."""

    presets: list[ListedPreset]


def listed_presets(config_dir: str | None = None) -> list[ListedPreset]:
    """The presets of ``reproduce.yaml``, from ``config_dir`` if it has that file.

    Raises :class:`UserError` naming the file and the invalid key.
    """
    own = Path(config_dir) / LIST_FILE if config_dir else None
    path = own if own is not None and own.exists() else config_folder() / LIST_FILE
    try:
        listed = build(PresetList, read_config(path), "").presets
    except (ValueError, OSError) as problem:
        raise UserError(f"{path}: cannot be read: {problem}") from None
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None
    known = choices("experiment", config_dir)
    for one in listed:
        if one.preset not in known:
            raise UserError(f"{path}: there is no preset {one.preset!r}{nearest(one.preset, known)}")
    return listed


def check_typed(overrides: list[str], reads: bool) -> None:
    """Raises :class:`UserError` for overrides that would stop every preset, before any is composed. ``reads``: whether
    data are read, or only the table of what is there is asked for."""
    for word in overrides:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "experiment":
            name = message_text(value) or "PRESET"
            right = f"reproduce takes the name alone, as in 'knot-runner reproduce {name}'"
            raise UserError(f"{message_text(word)}: {right}")
        folder = value.strip("'\"") if key == "paths.data" and reads and "$" not in value else "null"
        if folder not in ("", "null") and not Path(folder).expanduser().is_dir():
            raise UserError(f"{key}: {message_text(folder)} is not a folder; 'knot-runner data' shows what is needed")


def chosen_presets(names: list[str], config_dir: str | None) -> list[ListedPreset]:
    """The presets ``names`` as listed, or without a measured time if unlisted; all listed presets if ``names`` is
    empty.

    Raises :class:`UserError` for an unknown preset.
    """
    listed = listed_presets(config_dir)
    if not names:
        return listed
    known = choices("experiment", config_dir)
    for name in names:
        if name not in known:
            hint = nearest(name, known, listed_by="knot-runner ls")
            raise UserError(f"{message_text(name)}: there is no such preset{hint}")
    by_name = {one.preset: one for one in listed}
    return [by_name.get(name, ListedPreset(name)) for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class Candidate:
    """A preset to reproduce. ``words``: the overrides after ``experiment=NAME``; ``named``: the user named the
    preset."""

    listed: ListedPreset
    preset: Preset
    words: list[str]
    named: bool

    @property
    def name(self) -> str:
        """The preset's name."""
        return self.listed.preset

    @functools.cached_property
    def key(self) -> str:
        """The preset's name and a digest of its run ids, so that the same runs have the same key for any command
        line."""
        return f"{self.name} {digest(sorted(folder.name for folder in self.folders), 12)}"

    @functools.cached_property
    def folders(self) -> dict[Path, int]:
        """Folder of each run, and its seed; jobs that are the same run count once."""
        return {job.folder: job.settings.seed for job in self.preset.jobs}

    @functools.cached_property
    def missing(self) -> str:
        """One line on missing data and how to get them; "" if none are missing."""
        jobs = {repr(job.settings.task): job.settings for job in self.preset.jobs}
        for settings in jobs.values():
            if problem := missing_data(settings):
                return f"{problem}; {_how_to_get(settings.task.name, settings.paths.data)}"
        return ""

    def left(self) -> int:
        """Number of runs without a result."""
        return sum(status(folder) is None for folder in self.folders)

    def minutes_left(self) -> float | None:
        """Minutes on two CPU cores for the missing runs; None if the preset has no measured time."""
        left = self.left()
        if self.listed.minutes is None:
            return None if left else 0.0
        return self.listed.minutes * left / self.listed.runs

    def verdicts(self) -> list[Verdict]:
        """Verdicts on the claims about the candidate's runs. Raises :class:`UserError`."""
        if not self.preset.spec.get("claims"):
            return []
        found = judge(references(self.preset.jobs), self.preset.spec, self.preset.command)
        return [verdict for verdict in found if verdict.runs]

    @functools.cached_property
    def claims(self) -> int:
        """Number of claims about its runs."""
        return len(self.verdicts())

    def seeds(self) -> str:
        """Number of seeds: ``3``, or ``2 of 3`` if runs of one seed are missing."""
        states = Counter(self.folders.values())
        done = Counter(seed for folder, seed in self.folders.items() if status(folder) is not None)
        whole = sum(done[seed] == count for seed, count in states.items())
        return str(whole) if whole == len(states) else f"{whole} of {len(states)}"


def candidate(listed: ListedPreset, typed: Sequence[str], flags: Sequence[str], named: bool) -> Candidate:
    """The preset ``listed`` with the overrides ``typed``, which replace listed words with the same key.

    Raises :class:`UserError` if they do not fit together.
    """
    keys = {word.lstrip("+~").partition("=")[0] for word in typed}
    words = [*flags, *(word for word in listed.words if word.partition("=")[0] not in keys), *typed]
    preset = preset_of([listed.preset, *words], "reproduce")
    if len({job.settings.paths.out for job in preset.jobs}) > 1:
        raise UserError("paths.out: one folder is right, which all presets and their table are written to")
    return Candidate(listed, preset, words, named)


def order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by claims per minute of their missing runs, most first; those without a measured time last."""

    def rank(one: Candidate) -> tuple[bool, float]:
        minutes = one.minutes_left()
        return minutes is None, -one.claims / max(minutes, 0.01) if minutes is not None else 0.0

    return sorted(candidates, key=rank)


def _how_to_get(task: str, data: str | None) -> str:
    """The command that downloads the data of ``task`` or explains how to get them."""
    known = [one for one in data_sets().values() if task in one.tasks]
    fetched = [one.name for one in known if one.sources]
    where = f"paths.data={data or 'DIR'}"
    if fetched and len(fetched) == len(known):
        return f"'knot-runner data {' '.join(fetched)} --fetch {where}' downloads it"
    names = " ".join(one.name for one in known)
    return f"'knot-runner data {names} {where}' says where from".replace("  ", " ")


#: Returned instead of an exit code if the time limit ended the command.
CUT = -1000
#: Folder below ``paths.out`` for the commands' output.
PRINTED = "reproduced"


def command_of(one: Candidate) -> list[str]:
    """The command that runs the preset."""
    return [sys.executable, "-m", "knot_runner", f"experiment={one.name}", *one.words]


def run_preset(one: Candidate, seconds: float) -> int:
    """Run the preset for at most ``seconds``; returns the exit code or :data:`CUT`.

    The command's output goes to ``<out>/reproduced/NAME.txt``, its notes and progress to standard error. Raises
    :class:`UserError` if that file cannot be written.
    """
    path = one.preset.out / PRINTED / f"{one.name}.txt"
    require_writable(path.parent, "paths.out")
    return run_for(command_of(one), path, seconds)


def run_for(command: Sequence[str], printed: Path, seconds: float) -> int:
    """Run ``command``; after ``seconds`` send SIGTERM, then SIGKILL if it does not end. An interrupted run resumes from
    its last commit the next time. A SIGTERM to this process is passed on."""
    with (
        printed.open("w", encoding="utf-8") as file,
        subprocess.Popen(command, stdout=file) as process,
        on_sigterm(process.terminate),
    ):
        try:
            return process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            process.terminate()
        except BaseException:  # Ctrl-C, which the command also receives
            process.terminate()
            raise
        try:
            process.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return CUT
