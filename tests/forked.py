"""Command lines in processes of their own, to be killed: forked from a server that has imported torch once."""

import os
import signal
import sys
import tempfile
from pathlib import Path

from knot_runner.processes import prepared

PRELOADED = ["knot_runner.run", "knot_runner.pipelines.federated", "knot_runner.pipelines.distillation",
             "knot_runner.engine.federated.lean_worker", "transformers.models.bert.modeling_bert"]  # fmt: skip


class Forked:
    """``python -m knot_runner ARGUMENTS`` at the head of a process group of its own; its words go to a file."""

    def __init__(self, *arguments: str) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self._said = Path(file.name)
        self._process = prepared(PRELOADED).Process(target=_run, args=(arguments, str(self._said), dict(os.environ)))
        self._process.start()

    @property
    def ended(self) -> bool:
        return self._process.exitcode is not None

    @property
    def said(self) -> str:
        """What it printed, on either stream."""
        return self._said.read_text(errors="replace")

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """``kill -9`` of the whole group, its workers among it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self, seconds: float = 120) -> int:
        """Its exit code, minus the signal's number where one ended it."""
        self._process.join(seconds)
        assert self.ended, f"still running after {seconds} s: {self.said}"
        return self._process.exitcode

    @property
    def group_lives(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _run(arguments: tuple[str, ...], said: str, environment: dict[str, str]) -> None:
    """In the new process."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with open(said, "a") as file:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    from knot_runner.cli import main

    sys.exit(main(list(arguments)))
