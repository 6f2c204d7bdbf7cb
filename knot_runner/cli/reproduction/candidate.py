"""A preset to reproduce: its runs, the missing ones and their time, its claims, and whether its data are present."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from knot_runner.cli.reproduction.listed import ListedPreset
from knot_runner.cli.show import references
from knot_runner.cli.verbs.preset import Preset, preset_of
from knot_runner.config.strict import digest
from knot_runner.data.preflight import missing_data
from knot_runner.data.sources import data_sets
from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.sweeps.state import status
from knot_runner.util.errors import UserError


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
