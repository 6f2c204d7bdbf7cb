"""``knot-runner check``: lists the jobs of a command with their states, problems and expected time. No job is run."""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

from knot_runner import provenance
from knot_runner.cli.preview import preview
from knot_runner.composing.commands import compose_all
from knot_runner.composing.job import ComposedJob
from knot_runner.config.settings.partition import TRAINING_SHARES, unlike_shares
from knot_runner.data.preflight import no_data
from knot_runner.records import read_result
from knot_runner.report.render.terminal import TerminalColumn, listing, output, print_line
from knot_runner.report.render.text import duration, plain, short_line
from knot_runner.sweeps.state import JobState, state_of
from knot_runner.util.errors import counted

#: Maximum number of jobs that are listed without ``--all``.
MAX_JOBS_LISTED = 30
TITLES = ("run id", "task", "source", "method", "seed", "setting", "state")


def check_command(options: argparse.Namespace) -> int:
    """Print the jobs of a command. For the unfinished jobs, also print a preview and the expected time.

    Returns:
        The exit code. It is 2 if an error would stop the command, or if jobs of the same task hold out different
        fractions of the training examples. Otherwise, it is 0.
    """
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
    console.print(_listed(states, options.all))
    console.print(_summary(standings), highlight=False)
    refused = any(state.standing in ("different data", "damaged") for _, state in states)
    if refused:
        choices = "To rerun damaged runs and runs on different data, use --stale=rerun. To keep them, use --stale=keep"
        print_line(console, f"the command would stop. {choices}")
    done, left = {}, {}  # by run id, since several jobs may be the same run
    for job, state in states:
        if state.standing == "done":
            done[job.run_id] = job
        elif state.standing not in DONE:
            left[job.run_id] = job
    code = 0
    if left:
        code = _looked_ahead(console, list(left.values()), options.quick)
    if left and not code:
        print_line(console, _time_left(list(done.values()), list(left.values())))
    for line in unlike:
        print_line(console, line)
    if refused or unlike:
        return 2
    return code


def _unlike(jobs: list[ComposedJob]) -> list[str]:
    """Return a line for each task whose jobs hold out different shares by default; [] if the preset gives a reason."""
    from knot_runner.report.claims.spec import claim_settings

    report = jobs[0].settings.report
    if report and claim_settings(report).unlike:
        return []
    groups = defaultdict(list)
    for job in jobs:
        typed = [word for word in job.overrides if word.lstrip("+").startswith(TRAINING_SHARES)]
        groups[job.settings.task.name, *typed].append(job.config)
    lines = []
    for (task, *_), configs in groups.items():
        shares = unlike_shares(configs)
        line = f"jobs of task {task} hold out different shares: {shares}, or report.unlike=REASON to allow this"
        if shares and line not in lines:
            lines.append(line)
    return lines


#: State of jobs that a sweep does not run -> the word for this state in the summary.
DONE = {
    "done": "done", "diverged": "diverged", "different data": "on different data", "damaged": "damaged"
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- lists


def _listed(states: list[tuple[ComposedJob, JobState]], everything: bool) -> Table:
    """Return the table of jobs, with jobs that need attention first: all jobs if ``everything``, otherwise a few."""
    shown = states
    if not everything:
        shown = sorted(states, key=lambda pair: pair[1].standing in ("done", "to do"))[:MAX_JOBS_LISTED]
    rows = []
    for job, state in shown:
        task = job.settings.task
        method = job.settings.method.name
        seed = str(job.settings.seed)
        rows.append((job.run_id, task.name, task.source, method, seed, short_line(job.label), state.text))
    if len(shown) < len(states):
        rows.append(("",) * (len(TITLES) - 1) + (f"{len(states) - len(shown)} more; use --all to list every job",))
    columns = [TerminalColumn(title, no_wrap=title in ("run id", "seed"), overflow="fold") for title in TITLES]
    return listing(columns, rows)


def _summary(count: Counter[str]) -> str:
    """Return a line such as ``33 jobs, 12 done, 21 to do (1 running)``; jobs in parentheses have already started."""
    parts = [counted(count.total(), "job")]
    for name, text in DONE.items():
        if count[name] or name == "done":
            parts.append(f"{count[name]} {text}")
    parts.append(f"{count.total() - sum(count[name] for name in DONE)} to do")
    begun = [f"{count[name]} {name}" for name in ("running", "failed", "stopped") if count[name]]
    if begun:
        return f"{', '.join(parts)} ({', '.join(begun)})"
    return ", ".join(parts)


# ------------------------------------------------------------------------------------------------------------- preview


def _looked_ahead(console: Console, jobs: list[ComposedJob], quick: bool) -> int:
    """Print the preview of ``jobs``; return the exit code."""
    if problem := no_data(job.settings for job in jobs):
        print_line(console, f"the command would stop: {problem}")
        return 2
    if not quick:
        with console.status("preparing the runs (use --quick to skip this)"):
            outlook = preview(jobs)
        for title, lines in {"notes": outlook.lines(len(jobs)), **outlook.counts}.items():
            if title != "notes":
                title = f"examples of each class: {plain(title)}"
            if lines:
                console.print(f"\n{title}", style="bold")
            for line in lines:
                print_line(console, f"  {line}")
        if outlook.problem:
            print_line(console, f"the command would stop: {outlook.problem}")
            return 2
        console.print()
    return 0


def _time_left(done: list[ComposedJob], left: list[ComposedJob]) -> str:
    """Return the estimated time to run the jobs ``left`` one after another.

    Each job is assumed to take the median time of those ``done`` jobs that have the same task and method.
    """
    times = defaultdict(list)
    for job in done:
        result = read_result(job.folder)
        if result and result.seconds.total:
            times[_kind(job)].append(result.seconds.total)
    medians = [statistics.median(times[_kind(job)]) for job in left if _kind(job) in times]
    if not medians:
        return "no time estimate: no similar job has finished"
    text = (
        f"{counted(len(medians), 'job')} left: about {duration(sum(medians))}, estimated from medians of finished jobs"
    )
    others = len(left) - len(medians)
    if others:
        return f"{text}. No time estimate for the other {counted(others, 'job')}"
    return text


def _kind(job: ComposedJob) -> tuple[str, ...]:
    names = [str((job.config.get(group) or {}).get("name")) for group in ("model", "training")]
    return job.settings.task.name, job.arm or job.settings.method.name, *names
