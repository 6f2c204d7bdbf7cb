"""Progress of a run: live bars on a terminal, or plain lines if the output is piped."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import TaskID

from knot_runner.report.render.progress import progress_bars

#: Stages that take less than this many seconds leave no line.
WORTH_SAYING = 1.0


class Live:
    """Shows a progress bar for each unfinished stage, and prints a line with the duration of each finished stage.

    No line is printed for a stage that is shorter than one second.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.noted: list[str] = []
        self._bars: dict[str, tuple[TaskID, float]] = {}
        self._progress = progress_bars(console)

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, name: str, done: int, total: int, text: str) -> None:
        """Show the progress of a stage.

        Args:
            name: Name of the stage.
            done: Number of completed steps.
            total: Number of all steps.
            text: Text beside the bar. The text "done" ends the stage.
        """
        if name not in self._bars:
            self._bars[name] = (self._progress.add_task(name, total=total, text=text), time.monotonic())
        task, began = self._bars[name]
        if text == "done":
            self._progress.remove_task(task)
            del self._bars[name]
            seconds = time.monotonic() - began
            if seconds >= WORTH_SAYING:
                self._console.print(f"  {name:<24} {seconds:6.1f} s", highlight=False, markup=False)
            return
        self._progress.update(task, completed=done, total=total, text=text)

    def note(self, text: str) -> None:
        """Print ``text`` as a line above the progress bars."""
        self.noted.append(text)
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
