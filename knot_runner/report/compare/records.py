"""All run folders below ``paths.out``: each with its settings, its state and the numbers in its result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from knot_runner import provenance
from knot_runner.config.settings.run_id import HARDWARE_IN_RUN_ID, NOT_IN_RUN_ID, USED, kind_of, run_id
from knot_runner.records import BEFORE_SEALS, is_sealed
from knot_runner.report.compare.config_yaml import read_config
from knot_runner.report.compare.settings import flatten_settings, varying
from knot_runner.report.run_folders import UNUSED, Job, Run, load_runs, with_files
from knot_runner.util.errors import UserError

RunState = Literal["done", "diverged", "failed", "damaged", "other data", "unfinished"]
CONFIG = "config.yaml"
#: Not settings of a run but of the command that made it.
OF_THE_PRESET = ("sweep", "report")
#: What a result says of how it was made; runs that are averaged should agree in it.
MADE_WITH = ("data", "code", "versions.knot_runner", "versions.torch", "device")
#: Numbers in a result that measure nothing.
NO_MEASURES = ("seed", "threads")
#: Folders that a line names; of more it gives the number.
_MAX_NAMED = 3


@dataclass(frozen=True)
class RunRecord:
    """One run. ``settings``: those that can change its numbers, as ``written``; ``facts``: all else one can filter by
    (hardware, paths, status, run_id, versions). ``numbers``: dotted key of its result -> number, or None for null."""

    run: Run
    state: RunState
    settings: dict[str, str]
    facts: dict[str, str]
    numbers: dict[str, float | None] = field(default_factory=dict)
    #: whether the settings hash to the folder's name
    named_right: bool = True

    def value(self, key: str) -> str | None:
        """The setting or fact ``key`` as ``written``; None where this run has none."""
        return self.settings.get(key, self.facts.get(key))

    def names(self) -> Iterator[str]:
        """All keys that :meth:`value` knows."""
        yield from self.settings
        yield from self.facts

    @property
    def folder(self) -> Path:
        return self.run.job.folder

    @property
    def seed(self) -> int:
        return self.run.job.seed


@dataclass(frozen=True)
class Archive:
    """``records``: every run whose settings can be read; ``lines``: what was left out, and why."""

    records: tuple[RunRecord, ...]
    lines: tuple[str, ...]


def read_all(out: Path, data: str | None = None) -> Archive:
    """Every run below ``out`` (``<task>/<method>/<run id>/``); what cannot be read is named, never raised.

    ``data``: runs that were made from other files than those below it are left out, too. Raises :class:`UserError`
    when ``out`` is not there or holds no run.
    """
    if not out.is_dir():
        raise UserError(f"--out: {out}: is not a folder; paths.out of the runs would be right")
    jobs, foreign, current = [], [], provenance.CurrentData(data)
    for folder in _folders(out):
        try:
            jobs.append(_job(folder, current))
        except (ValueError, OSError, RecursionError) as problem:
            foreign.append(f"{folder.relative_to(out)} ({problem})")
    memo: dict[str, dict[str, str]] = {}
    records = [_record(with_files(run, [CONFIG]), memo) for run in load_runs(jobs)]
    if not records:
        raise UserError(f"--out: {out}: holds no runs (<task>/<method>/<run id>/config.yaml){_named(': ', foreign)}")
    lines = [f"Left out: {len(foreign)} folders that are not runs{_named(': ', foreign)}."] if foreign else []
    return Archive(tuple(records), tuple(lines))


def differing(records: Sequence[RunRecord]) -> tuple[list[str], list[dict[str, str]]]:
    """Settings in which ``records`` differ, and their values in each; one that a run does not use, such as the
    number of clusters where nothing is clustered, counts as its config has it."""
    keys = varying([record.settings for record in records])
    rows = [{key: value for key in keys if (value := record.value(key)) is not None} for record in records]
    return varying(rows), rows


def _folders(out: Path) -> list[Path]:
    """Folders three floors down that hold a record; ``artefacts`` and the like have other files."""
    marks = ("config.yaml", "result.json", "failed.json")
    there = (path for path in out.glob("[!.]*/[!.]*/[!.]*") if any((path / mark).exists() for mark in marks))
    return sorted(there)


def _job(folder: Path, data: provenance.CurrentData) -> Job:
    """Raises ValueError for a config that is not that of a run in this place."""
    if not (folder / "config.yaml").exists():
        began = "failed before its settings were written" if (folder / "failed.json").exists() else "no config.yaml"
        raise ValueError(began)
    if (folder / "result.json").exists() and not (folder / "result.json").is_file():  # a pipe would never end
        raise ValueError("result.json is not a file")
    try:
        config = read_config(folder / "config.yaml")
    except ValueError as problem:
        raise ValueError(f"config.yaml {problem}") from None
    task, method, seed = _name(config, "task"), _name(config, "method"), config.get("seed")
    if task is None or method is None or type(seed) is not int:
        raise ValueError("config.yaml is not that of a run: it needs task.name, method.name and seed")
    if (task, method) != (folder.parent.parent.name, folder.parent.name):
        raise ValueError("config.yaml is of another task or method")
    return Job(folder.name, folder, task, method, seed, "", config, data)


def _name(config: Mapping[str, Any], group: str) -> str | None:
    value = config.get(group)
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None


def _record(run: Run, memo: dict[str, dict[str, str]]) -> RunRecord:
    config = run.job.config
    settings = _flat(_counted(config), memo)
    rest = _flat({key: value for key, value in config.items() if key not in OF_THE_PRESET}, memo)
    state = _state(run)
    facts = {key: value for key, value in rest.items() if key not in settings}
    facts |= {"run_id": _printable(run.job.run_id), "status": state}
    facts |= {key: value for key, value in _texts(run.result) if key in MADE_WITH}
    return RunRecord(run, state, settings, facts, dict(_numbers(run.result)), _named_right(run.job))


def _flat(config: Mapping[str, Any], memo: dict[str, dict[str, str]]) -> dict[str, str]:
    """:func:`flatten_settings`, group by group: most runs of a sweep share most groups, kept in ``memo``."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        token = f"{key}: {value!r}"
        if token not in memo:
            memo[token] = flatten_settings({key: value})
        flat |= memo[token]
    return flat


def _counted(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that name the run; where another version's have other keys, all but what never counts."""
    counted = {key: value for key, value in config.items() if key not in NOT_IN_RUN_ID}
    try:
        return USED[kind_of(config["task"])](config, counted)
    except (KeyError, TypeError, AttributeError):
        hardware = config.get("hardware")
        rest = {key: hardware.get(key) for key in HARDWARE_IN_RUN_ID} if isinstance(hardware, dict) else {}
        return counted | ({"hardware": rest} if rest else {})


def _named_right(job: Job) -> bool:
    try:
        return run_id(job.config) == job.run_id
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def _state(run: Run) -> RunState:
    if run.status == "missing":
        return "failed" if (run.job.folder / "failed.json").is_file() else "unfinished"
    return UNUSED.get(run.status, run.status)


def _numbers(result: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float | None]]:
    """Finite numbers and nulls below ``result``, by dotted key."""
    for key, value in result.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            yield from _numbers(value, f"{name}.")
        elif name not in NO_MEASURES and (value is None or _is_number(value)):
            yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _texts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    versions = result.get("versions")
    for key, text in versions.items() if isinstance(versions, dict) else ():
        yield f"versions.{key}", _printable(str(text))
    yield from ((key, _printable(value)) for key, value in result.items() if isinstance(value, str))


# ------------------------------------------------------------------------------------------------------- what is wrong


def doubtful(records: Sequence[RunRecord], out: Path) -> list[str]:
    """A line each on results among ``records`` that are not used, on those that say nothing of their other files, and
    on settings that do not hash to their folder's name."""
    lines = []
    for state, what in {"damaged": "damaged results", "other data": "results of other data"}.items():
        unused = [_short(record.run, out) for record in records if record.state == state]
        lines += [f"Left out: {len(unused)} {what}{_named(': ', unused)}."] if unused else []
    unsealed = sum(record.state == "done" and not is_sealed(record.run.result) for record in records)
    lines += [f"{unsealed} results were {BEFORE_SEALS}."] if unsealed else []
    renamed = [str(r.folder.relative_to(out)) for r in records if not r.named_right and r.state != "damaged"]
    if renamed:
        why = "changed since, or another version's"
        lines.append(f"config.yaml does not hash to the folder's name ({why}): {_named('', renamed)}.")
    return lines


def _short(run: Run, out: Path) -> str:
    """The folder below ``out``, and what is wrong with its result."""
    reason = run.problem.removeprefix(str(run.job.folder / "result.json")).removeprefix(f"{run.job.folder}/").strip()
    return f"{run.job.folder.relative_to(out)} ({reason})"


def _named(lead: str, items: Iterable[str]) -> str:
    names = list(items)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{lead}{_printable('; '.join(names[:_MAX_NAMED]))}{more}" if names else ""


def _printable(text: str) -> str:
    """Without lone surrogates, which names of files and JSON can hold and no terminal prints."""
    return text.encode("utf-8", "replace").decode()
