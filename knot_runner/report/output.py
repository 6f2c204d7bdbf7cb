"""Where tables are printed: as wide as the terminal, and on a pipe or into a file as wide as they are."""

from __future__ import annotations

from rich.console import Console

#: Columns of what is no terminal: no table is wider, so that none is folded inside a word.
PIPE_WIDTH = 1000


def output() -> Console:
    """A console for stdout."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)
