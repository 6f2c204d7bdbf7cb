"""Runs the command of one preset in a process of its own, within a time limit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from knot_runner.cli.reproduction.candidate import Candidate
from knot_runner.util.files import require_writable
from knot_runner.util.processes import GRACE_SECONDS, on_sigterm

#: Returned instead of an exit code if the time limit ended the command.
CUT = -1000
#: Folder below ``paths.out`` for the commands' output.
PRINTED = "reproduced"


def command_of(one: Candidate) -> list[str]:
    """The command that runs the preset, with the fused launcher unless its words choose another."""
    launcher = [] if any(word.startswith("hydra/launcher=") for word in one.words) else ["hydra/launcher=fused"]
    return [sys.executable, "-m", "knot_runner", f"experiment={one.name}", *one.words, *launcher]


def run_preset(one: Candidate, seconds: float) -> int:
    """Run the preset for at most ``seconds``; returns the exit code or :data:`CUT`.

    The command's output goes to ``<out>/reproduced/NAME.txt``, its notes and progress to standard error. Raises
    :class:`UserError` if that file cannot be written.
    """
    folder = one.preset.out / PRINTED
    require_writable(folder, "paths.out")
    return run_for(command_of(one), folder / f"{one.name}.txt", seconds)


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
