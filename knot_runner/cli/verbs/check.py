"""``check``: lists a command's jobs, their state, problems and recorded times, without running anything."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from knot_runner import provenance
from knot_runner.config.settings.partition import TRAINING_SHARES, unlike_shares
from knot_runner.config.strict import by_key
from knot_runner.report.render.terminal import TerminalColumn, listing, output, print_line
from knot_runner.report.render.text import plain, short_line
from knot_runner.sweeps.state import JobState, state_of
from knot_runner.util.errors import counted

if TYPE_CHECKING:
    from knot_runner.composing.job import ComposedJob

#: Above this number, jobs are shown in groups.
MAX_JOBS_LISTED = 30
#: Maximum number of jobs needing attention that are listed individually beside the groups.
NOTABLE = 10
TITLES = ("run id", "task", "source", "method", "seed", "setting", "state")


def check_command(options: argparse.Namespace) -> int:
    """Print the jobs, the preview of missing jobs, and their expected time. Return 2 if the sweep would stop."""
    from knot_runner.composing.commands import compose_all

    jobs, commands = compose_all([*options.flags, *options.words])
    unlike = []
    for command in commands:
        if command.jobs[0].settings.report:
            from knot_runner.cli.show import check_shown

            check_shown(command.jobs)
        unlike += _unlike(command.jobs)
    data = provenance.CurrentData(jobs[0].settings.paths.data_dir)
    states = [(job, state_of(job, data)) for job in jobs]
    standings = Counter(state.standing for _, state in states)
    console = output()
    console.print(_listed(states) if len(jobs) <= MAX_JOBS_LISTED or options.all else _grouped(states))
    console.print(_summary(standings), highlight=False)
    refused = standings["different data"] or standings["damaged"]
    if refused:
        choices = "To rerun damaged runs and runs on different data, use --stale=rerun. To keep them, use --stale=keep"
        print_line(console, f"the command would stop. {choices}")
    left = {job.run_id: job for job, state in states if state.standing not in DONE}
    code = _looked_ahead(console, list(left.values()), options.quick) if left else 0
    for line in unlike:
        print_line(console, line)
    return 2 if refused or unlike else code


def _unlike(jobs: list[ComposedJob]) -> list[str]:
    """Return a line for each task whose jobs hold out different default shares; [] if the preset explains them."""
    if (jobs[0].settings.report or {}).get("unlike"):
        return []
    groups = defaultdict(list)
    for job in jobs:
        typed = [word for word in job.overrides if word.lstrip("+").startswith(TRAINING_SHARES)]
        groups[job.settings.task.name, *typed].append(job.config)
    lines = []
    for (task, *_), configs in groups.items():
        if shares := unlike_shares(configs):
            lines.append(f"jobs of {task} hold out different shares: {shares}, or allow it with report.unlike=REASON")
    return list(dict.fromkeys(lines))


#: States of jobs that a sweep leaves unchanged, as the summary says them.
DONE = {
    "done": "done", "diverged": "diverged", "different data": "on different data", "damaged": "damaged"
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- lists


def _listed(states: list[tuple[ComposedJob, JobState]]) -> Table:
    rows = []
    for job, state in states:
        rows.append((job.run_id, *_kind(job), str(job.settings.seed), short_line(job.label), state.text))
    return _table(TITLES, rows)


def _grouped(states: list[tuple[ComposedJob, JobState]]) -> Table:
    """Return a table with one row per task, source and method. Jobs that need attention have separate rows."""
    rows, notable = [], []
    for kind, standings in by_key((_kind(job), state.standing) for job, state in states).items():
        counts = ", ".join(f"{number} {name}" for name, number in Counter(standings).items())
        rows.append((*kind, str(len(standings)), counts))
    for job, state in states:
        if state.standing not in ("done", "to do"):
            notable.append((*_kind(job), "", f"{job.run_id} {state.text}"))
    hidden = len(notable) - NOTABLE
    more = f"{hidden} more such jobs; " if hidden > 0 else ""
    rows += [*notable[:NOTABLE], ("", "", "", "", f"{more}use --all to list every job")]
    return _table(("task", "source", "method", "jobs", "state"), rows)


def _kind(job: ComposedJob) -> tuple[str, str, str]:
    return job.settings.task.name, job.settings.task.source, job.settings.method.name


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [TerminalColumn(title, no_wrap=title in ("run id", "seed", "jobs"), overflow="fold") for title in titles]
    return listing(columns, rows)


def _summary(count: Counter[str]) -> str:
    """Return a line such as ``33 jobs, 12 done, 21 to do (1 running)``; parentheses list jobs that have started."""
    parts = [counted(count.total(), "job")]
    for name, text in DONE.items():
        if count[name] or name == "done":
            parts.append(f"{count[name]} {text}")
    parts.append(f"{count.total() - sum(count[name] for name in DONE)} to do")
    begun = [f"{count[name]} {name}" for name in ("running", "failed", "stopped") if count[name]]
    return ", ".join(parts) + (f" ({', '.join(begun)})" if begun else "")


# ------------------------------------------------------------------------------------------------------------- preview


def _looked_ahead(console: Console, jobs: list[ComposedJob], quick: bool) -> int:
    """Print the preview of ``jobs`` and their expected time; return the exit code."""
    from knot_runner.cli.preview import preview, time_left
    from knot_runner.data.preflight import no_data

    if problem := no_data(job.settings for job in jobs):
        print_line(console, f"the command would stop: {problem}")
        return 2
    if not quick:
        with console.status("preparing the runs (use --quick to skip this)"):
            outlook = preview(jobs)
        for title, lines in {"notes": outlook.lines(len(jobs)), **outlook.counts}.items():
            if lines:
                shown = title if title == "notes" else f"examples of each class: {plain(title)}"
                console.print(f"\n{shown}", style="bold")
            for line in lines:
                print_line(console, f"  {line}")
        if outlook.problem:
            print_line(console, f"the command would stop: {outlook.problem}")
            return 2
        console.print()
    for line in time_left(jobs):
        print_line(console, line)
    return 0
