"""``knot-runner ls``: everything that can be composed, read from the YAML files' heads."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from knot_runner import listing


def ls(arguments: list[str]) -> int:
    """Print each group with its choices and what they are."""
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
