"""The ``knot-runner`` command. It starts runs and sweeps, or executes a verb.

This module imports few other modules, so that signals are handled early.
"""

from __future__ import annotations

import os
import sys

from knot_runner import __version__
from knot_runner.util.errors import LOGGER, UserError, messages_to, nearest, print_on_stderr
from knot_runner.util.processes import ended_by_signals, main_left_alone, on_signal
from knot_runner.util.streams import lasting, print_safely

#: Message on an interrupting signal. On a terminal, a control code also shows the cursor, which a live view hides.
INTERRUPTED = b"knot-runner: interrupted. Repeat the command to resume from the last commit\n"
SHOW_CURSOR = b"\x1b[?25h"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code. If the user made an error, print it as one line.

    The function can be called from tests, notebooks and scripts: it restores the standard streams and, if ``argv`` is
    given, the signal handlers.

    Args:
        argv: Arguments of the command; None for the arguments of this process.
    """
    arguments = argv
    if arguments is None:
        arguments = sys.argv[1:]
    with (
        ended_by_signals(restored=argv is not None),
        on_signal(_say_interrupted),
        lasting() as out,
        messages_to(print_on_stderr),
        main_left_alone(),
    ):
        return print_safely(out, _exit_code(list(arguments)))


def _exit_code(arguments: list[str]) -> int:
    try:
        return _execute(arguments)
    except UserError as problem:
        LOGGER.error("%s", problem)
        return problem.exit_code  # launch.py determines the other exit codes
    except OSError as problem:  # a deleted folder, a failing disk
        if problem.filename is None:
            raise
        LOGGER.error("%s: %s", problem.filename, problem.strerror)
        return 1


def _say_interrupted() -> None:
    """Write the message directly to the terminal, because the signal may have interrupted a print."""
    if os.isatty(2):
        os.write(2, SHOW_CURSOR)
    os.write(2, INTERRUPTED)


def _execute(arguments: list[str]) -> int:
    from knot_runner.cli.parsers import VERBS, parser_of, run_verb  # only now that signals are handled

    verb = (arguments or [""])[0]
    if "=" in verb or verb[:1] in "-~+":
        verb = ""
    if "--help" in arguments or "-h" in arguments:
        if verb not in VERBS:  # the operator also imports the papers' verbs
            verb = ""
        print(parser_of(verb).format_help(), end="")
        return 0
    if verb and verb not in VERBS:
        raise UserError(f"unknown verb{nearest(verb, VERBS)}", f"{verb[:60]!r}")
    if verb:
        return run_verb(verb, arguments[1:])
    options = parser_of("").parse(arguments)
    if options.version:
        print(f"knot-runner {__version__}")
        return 0
    from knot_runner.cli.launch import run_jobs

    return run_jobs(options)
