"""The command of one preset in a process of its own, which ends with the time that there is for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from knot_runner.cli.reproduction.candidate import Candidate
from knot_runner.util.files import require_writable
from knot_runner.util.processes import GRACE_SECONDS, on_sigterm

#: Returned in place of an exit code: the time was over before the command was.
CUT = -1000
#: Below ``paths.out``: what the commands print.
PRINTED = "reproduced"


def command_of(one: Candidate) -> list[str]:
    """The command that makes the preset's runs, all as one program unless a launcher is asked for."""
    launcher = [] if any(word.startswith("hydra/launcher=") for word in one.words) else ["hydra/launcher=fused"]
    return [sys.executable, "-m", "knot_runner", f"experiment={one.name}", *one.words, *launcher]


def run_preset(one: Candidate, seconds: float) -> int:
    """Make the preset's runs for at most so many ``seconds``; the exit code, or :data:`CUT`.

    What the command prints is in ``<out>/reproduced/NAME.txt``; its notes and progress stay on standard error. Raises
    :class:`UserError` where nothing can be written.
    """
    folder = one.preset.out / PRINTED
    require_writable(folder, "paths.out")
    return run_for(command_of(one), folder / f"{one.name}.txt", seconds)


def run_for(command: Sequence[str], printed: Path, seconds: float) -> int:
    """Run ``command``, which is sent SIGTERM after ``seconds``, and SIGKILL where it does not end then; a run that is
    cut goes on from its last commit another time. SIGTERM of this process is passed on."""
    with (
        printed.open("w", encoding="utf-8") as file,
        subprocess.Popen(command, stdout=file) as process,
        on_sigterm(process.terminate),
    ):
        try:
            return process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            process.terminate()
        except BaseException:  # Ctrl-C, which the command was sent, too
            process.terminate()
            raise
        try:
            process.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return CUT
