"""The ``knot-runner`` command: runs and sweeps, or one of the verbs. Imports torch only when a run begins."""

from __future__ import annotations

import importlib
import os
import sys

from knot_runner import __version__
from knot_runner.composing.overrides import joined_flags
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER, messages_to, print_on_stderr
from knot_runner.util.processes import ended_by_sigterm, main_left_alone, on_sigterm
from knot_runner.util.streams import lasting, print_safely

#: Verb -> the module in ``verbs/`` with its ``<verb>_command`` and ``<VERB>_HELP``.
VERBS = {
    "bound": "runs",
    "bundle": "runs",
    "check": "check",
    "claims": "preset",
    "compare": "compare",
    "data": "data",
    "ls": "ls",
    "plot": "preset",
    "report": "report",
    "reproduce": "reproduce",
    "table": "preset",
    "verify": "verify",
}
HELP = """\
knot-runner: experiments in knowledge distillation and federated learning, composed from YAML

  knot-runner                             a whole KNOT run on generated text (CPU, a few minutes)
  knot-runner task=erc method=sinkhorn_e task.source=local paths.data=DIR seed=1
  knot-runner task=femnist method=fedavg_chill method.temperature=0.05
  knot-runner task=mnist_fedwad method=clustered_fedrep      clients grouped by the distance of their data first
  knot-runner task=gaussians                                 one federated Wasserstein distance
  knot-runner -m method=entropy_a,sinkhorn_e seed=0,1,2      a grid
  knot-runner experiment=knot/table3 task.missing=skip       a preset with its grid

  knot-runner ls                          tasks, models, methods, presets; your own with --config-dir=DIR
  knot-runner data   [TASK] [--fetch]     which data are there, where the others come from, their download
  knot-runner check  [overrides]          the jobs, their state, what would stop them, and recorded times
  knot-runner table  PRESET [overrides]   ours beside the paper's, from the records
  knot-runner plot   PRESET [overrides]   its figure, from the records
  knot-runner claims PRESET [overrides]   which of the paper's claims hold, with intervals
  knot-runner report PRESET [overrides]   all of it on one HTML page
  knot-runner bound  RUN...               the generalisation bound of finished KNOT runs (Theorem 5.2)
  knot-runner compare [filters]           any runs, by any setting; exports CSV, Parquet, LaTeX, Markdown
  knot-runner reproduce [--hours=2]       presets one after another, most claims per hour first; their table
  knot-runner bundle RUN...               finished runs in one archive, for others to verify
  knot-runner verify BUNDLE               a bundle's runs made again here, and how alike they come out
  knot-runner plot   partition task=femnist partition=small         who has which classes

Overrides are Hydra's (key=value, +key=value). Its flags: --config-dir DIR (-cd) adds a folder of your own
YAML, --config-name NAME (-cn) chooses the main file, --cfg job|hydra|all (-c) prints the config, --multirun (-m).
A grid runs under hydra/launcher=basic (one job after another), joblib, ray, submitit_local or submitit_slurm.
The same command again goes on where it stopped, or shows what it found; --stale=rerun makes anew what other code or
data made. A verb with --help: its flags."""


#: Message on an interrupting signal; on a terminal also the code that shows the cursor again, which a live view hides.
INTERRUPTED = b"knot-runner: interrupted; the same command goes on from the last commit\n"
SHOW_CURSOR = b"\x1b[?25h"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Prints at most one line for a user error.

    Restores signals and standard streams, so that tests and notebooks may call it, and scripts without ``if __name__
    == "__main__"``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with (
        lasting() as out,
        messages_to(print_on_stderr),
        ended_by_sigterm(),
        on_sigterm(_say_interrupted),
        main_left_alone(),
    ):
        return print_safely(out, _exit_code(arguments))


def _exit_code(arguments: list[str]) -> int:
    try:
        _check_place()
        return _carry_out(arguments)
    except UserError as problem:
        LOGGER.error("%s", problem)
        return problem.exit_code  # launch.py has the other exit codes
    except OSError as problem:  # a deleted folder, a failing disk
        if problem.filename is None:
            raise
        LOGGER.error("%s: %s", problem.filename, problem.strerror)
        return 1
    except KeyboardInterrupt:
        _say_interrupted()
        # no return: joining threads of killed workers may hang, and commits are atomic
        os._exit(130)


def _check_place() -> None:
    """Check that the current folder exists: libraries ask for it, and relative paths start there."""
    try:
        os.getcwd()  # noqa: PTH109 (Path.cwd does no more)
    except OSError:
        raise UserError("the current folder is not there any more; cd to one that is") from None


def _say_interrupted() -> None:
    """Write the message directly to the terminal, since the signal may have interrupted a print."""
    os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + INTERRUPTED)


def _no_such_command(word: str) -> str:
    """The message for a first word that is no verb."""
    from knot_runner.composing.override_errors import assignment, message_text

    if meant := assignment(word):
        return f"{message_text(word)}: there is no such command. Use knot-runner {meant}"
    return f"{message_text(word)}: there is no such command{nearest(word, VERBS)}"


def _carry_out(typed: list[str]) -> int:
    arguments = joined_flags(typed)
    wants_help = any(a in ("-h", "--help") for a in arguments) or arguments[:1] == ["help"]
    words = arguments[1:] if arguments[:1] == ["help"] else arguments
    verb = words[0] if words else ""
    module = importlib.import_module(f"knot_runner.cli.verbs.{VERBS[verb]}") if verb in VERBS else None
    if wants_help:
        print(getattr(module, f"{verb.upper()}_HELP") if module else HELP)
        return 0
    if "--version" in arguments:
        print(f"knot-runner {__version__}")
        return 0
    if module:
        return getattr(module, f"{verb}_command")(arguments[1:])
    if verb and "=" not in verb and not verb.startswith(("-", "~", "+")):
        raise UserError(_no_such_command(verb))
    from knot_runner.cli.launch import run_jobs

    return run_jobs(arguments)
