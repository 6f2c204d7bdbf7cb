"""Completion in real shells: bash and zsh are typed into at a terminal, fish is asked what it would offer."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: How each shell begins without files of the user, and what makes Ctrl-G print the line that is being typed.
SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'bind -x \'"\\C-g": echo "<$READLINE_LINE>"\''),
    "zsh": (["zsh", "-f", "-i"], 'show() { print -r -- "<$BUFFER>" }; zle -N show; bindkey "^G" show'),
}
TAB, SHOW, CLEAR = b"\t", b"\x07", b"\x15"
MAX_SECONDS = 60.0
TYPED = {
    "knot-runner task=femn": "knot-runner task=femnist",
    "knot-runner -m seed=0,1 method=fedavg,fedpro": "knot-runner -m seed=0,1 method=fedavg,fedprox",
    "knot-runner table knot_fi": "knot-runner table knot_fig",
    "knot-runner 'training.lr=tag(log,interval(0.01,1))' che": "",  # no key or group begins so: nothing is offered
    "knot-runner hydra/launcher=fu": "knot-runner hydra/launcher=fused",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a shell that finds this checkout as ``knot-runner``."""
    root = Path(__file__).resolve().parents[1]
    command = tmp_path / "knot-runner"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m knot_runner "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(root), "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}


def _read(terminal: int, enough: Callable[[str], bool], seconds: float) -> str:
    """What the shell writes until that is ``enough``, or the time is over."""
    found, end = "", time.monotonic() + seconds
    while time.monotonic() < end and not enough(found):
        if select.select([terminal], [], [], 0.1)[0]:
            found += os.read(terminal, 65536).decode(errors="replace")
    return found


def _completed(terminal: int, typed: str, expected: str) -> str:
    """The command line after ``typed`` and TAB, asked for until it is as expected or the time is over."""
    os.write(terminal, typed.encode() + TAB)
    end, line = time.monotonic() + MAX_SECONDS, ""
    while time.monotonic() < end and line != expected:
        os.write(terminal, SHOW)  # read once the shell is through with the TAB
        shown = _read(terminal, lambda text: re.search(r"<.*>", text) is not None, MAX_SECONDS)
        line = re.findall(r"<(.*?)>", shown)[-1]
    os.write(terminal, CLEAR)
    return line


@pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=[] if shell == "bash" else pytest.mark.thorough) for shell in SHELLS]
)
def test_a_tab_at_a_terminal_completes(shell: str, environment: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    argv, showing = SHELLS[shell]
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(argv[0], argv, environment)
    try:
        for number, line in enumerate((showing, f'eval "$(knot-runner -sc install={shell})"')):
            os.write(terminal, f'{line}\necho did""{number}\n'.encode())
            said = _read(terminal, lambda text, end=f"did{number}\r": end in text, MAX_SECONDS)
            assert "not found" not in said
        for typed, expected in TYPED.items():
            assert _completed(terminal, typed, expected or typed) == (expected or typed)
    finally:
        os.close(terminal)  # the shell is hung up on
        os.waitpid(process, 0)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.thorough
def test_fish_offers_names_and_forgets(environment: dict[str, str]) -> None:
    asking = [f'complete -C "{typed}"; echo END' for typed in (*TYPED, "knot-runner table knot_table")]
    lines = ["knot-runner -sc install=fish | source", *asking, "knot-runner -sc uninstall=fish | source", asking[0]]
    done = subprocess.run(
        ["fish", "--no-config", "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, check=True
    )
    offered = [part.split() for part in done.stdout.split("END\n")[:-1]]
    assert offered[:2] == [["task=femnist"], ["method=fedavg,fedprox"]] and len(offered[2]) == 5
    assert offered[3:] == [[], ["hydra/launcher=fused"], [f"knot_table{number}" for number in (1, 2, 3, 4)], []]
