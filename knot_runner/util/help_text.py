"""Help in a narrow terminal: long lines are wrapped below their own text, not in the middle of a word."""

from __future__ import annotations

import os
import re
import sys
import textwrap


def print_help(text: str) -> None:
    """Print ``text``; on a terminal, wrapped to its width."""
    print(wrapped(text, os.get_terminal_size(sys.stdout.fileno()).columns) if sys.stdout.isatty() else text)


def wrapped(text: str, width: int) -> str:
    """``text`` with no line longer than ``width`` where words allow it; what follows a name and two spaces stays right
    of it, or, where that leaves little room, is indented by six."""
    lines = []
    for line in text.splitlines():
        beginning = re.match(r".*\S\s{2,}(?=\S)|\s*", line)
        column = beginning.end() if beginning else 0
        indent = column if column <= 2 * width // 3 else 6
        whole = textwrap.TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False)
        whole.break_on_hyphens = False
        lines += [line] if len(line) <= width else whole.wrap(line)
    return "\n".join(lines)
