"""The ``knot-runner`` command: run (also multirun), ls, check, table, plot. Imports torch only when a run begins."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from knot_runner import listing
from knot_runner.errors import UserError, nearest

if TYPE_CHECKING:
    from knot_runner.compose import ComposedJob

HELP = """\
knot-runner: experiments in knowledge distillation and federated learning, composed from YAML

  knot-runner                             a whole KNOT run on generated text (CPU, a few minutes)
  knot-runner task=erc method=sinkhorn_e task.source=local paths.data=DIR seed=1
  knot-runner task=femnist method=fedavg_chill method.temperature=0.05
  knot-runner task=mnist_fedwad method=clustered_fedrep      clients grouped by the distance of their data first
  knot-runner task=gaussians                                 one federated Wasserstein distance
  knot-runner -m method=entropy_a,sinkhorn_e seed=0,1,2      a grid
  knot-runner experiment=knot_table3 task.missing=skip       a preset with its grid

  knot-runner ls                          tasks, models, methods, presets
  knot-runner check  [overrides]          the job list, and what is already there; runs nothing
  knot-runner table  PRESET [overrides]   ours beside the paper's, from the records
  knot-runner plot   PRESET [overrides]   its figure, from the records
  knot-runner plot   partition task=femnist partition=dirichlet     who has which classes

Overrides are Hydra's (key=value, +key=value); --config-dir=DIR adds a folder of YAML of your own.
The same command again goes on where it stopped, or shows what it found. --hydra-help: Hydra's own flags."""


def main(argv: list[str] | None = None) -> int:
    """The command's whole life; returns the exit code and prints at most one line for a user's mistake."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = _carry_out(arguments)
        sys.stdout.flush()
        return code
    except UserError as problem:
        print(f"knot-runner: {problem}", file=sys.stderr)
        return 2  # the user's input; launch.py has the other exit codes
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (KeyboardInterrupt, _Terminated) as stop:
        print("knot-runner: interrupted; the same command goes on from the last commit", file=sys.stderr)
        sys.stderr.flush()
        # not return: joining threads of killed workers may hang, and every commit is whole at any moment
        os._exit(130 if isinstance(stop, KeyboardInterrupt) else 143)


def _carry_out(arguments: list[str]) -> int:
    if any(a in ("-h", "--help", "help") for a in arguments):
        print(HELP)
        return 0
    verb = arguments[0] if arguments else ""
    if verb in VERBS:
        return VERBS[verb](arguments[1:])
    if verb and "=" not in verb and not verb.startswith(("-", "~", "+")):
        raise UserError(f"{verb}: there is no such command{nearest(verb, VERBS)}; --help shows all")
    from knot_runner.launch import run_jobs

    return run_jobs(arguments)


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that trackers are finished and workers ended on the way out."""


def _terminated(number: int, frame: Any) -> None:
    raise _Terminated


# --------------------------------------------------------------------------------------------- verbs


def show_list(arguments: list[str]) -> int:
    """``ls``: everything that can be composed, read from the YAML files' heads."""
    console = Console(soft_wrap=False)
    for group, choices in listing.everything(listing.config_folder()).items():
        rows = Table(title=group, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        rows.add_column(no_wrap=True, style="bold")
        rows.add_column(overflow="fold")
        for name, text in choices:
            rows.add_row(name, text)
        console.print(rows)
        console.print()
    return 0


def check(arguments: list[str]) -> int:
    """``check``: compose every job and say which are done."""
    from knot_runner.compose import compose_all
    from knot_runner.launch import status
    from knot_runner.report.terminal import short

    jobs, _ = compose_all(arguments)
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("run id", "task", "source", "method", "seed", "setting", "state"):
        rows.add_column(title, overflow="fold")
    for job in jobs:
        state = status(job) or "to do"
        task = job.settings.task
        rows.add_row(
            job.run_id,
            task.name,
            task.source,
            job.settings.method["name"],
            str(job.settings.seed),
            short(job.label),
            state,
        )
    console = Console()
    console.print(rows)
    done = sum(status(job) == "done" for job in jobs)
    console.print(f"{len(jobs)} jobs, {done} done, {len(jobs) - done} to do", highlight=False)
    return 0


def table(arguments: list[str]) -> int:
    """``table PRESET``: ours beside the paper's."""
    name, jobs = _preset(arguments, "table")
    from knot_runner.show import show_table

    show_table(name, jobs, _command(arguments))
    return 0


def plot(arguments: list[str]) -> int:
    """``plot PRESET``: its figure. ``plot partition``: how images are dealt to clients; trains nothing."""
    if arguments[:1] == ["partition"]:
        from knot_runner.compose import compose_all
        from knot_runner.show import show_partition

        jobs, _ = compose_all(arguments[1:])
        for job in jobs:
            show_partition(job)
        return 0
    name, jobs = _preset(arguments, "plot")
    from knot_runner.show import show_figure

    show_figure(name, jobs, _command(arguments))
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {"ls": show_list, "check": check, "table": table, "plot": plot}


def _preset(arguments: list[str], verb: str) -> tuple[str, list[ComposedJob]]:
    if not arguments or "=" in arguments[0] or arguments[0].startswith("-"):
        raise UserError(f"{verb}: needs the name of a preset, as in 'knot-runner {verb} knot_table3' (ls lists them)")
    from knot_runner.compose import compose_all

    jobs, _ = compose_all([f"experiment={arguments[0]}", *arguments[1:]])
    return arguments[0], jobs


def _command(arguments: list[str]) -> str:
    return " ".join(["knot-runner", f"experiment={arguments[0]}", *arguments[1:]])
