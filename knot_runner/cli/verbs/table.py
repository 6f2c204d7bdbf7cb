"""``knot-runner table PRESET``: prints our numbers beside the paper's, from the records."""

from __future__ import annotations

from knot_runner.cli.verbs.preset import PRESET_FLAGS, preset_of

TABLE_HELP = f"""\
knot-runner table PRESET [overrides]: ours beside the paper's, from the records; Markdown, CSV and LaTeX below paths.out

{PRESET_FLAGS}

  knot-runner table knot_table3 task.missing=skip"""


def table_command(arguments: list[str]) -> int:
    """Print the preset's table and write it below ``<out>/tables``. Raises :class:`UserError`."""
    preset = preset_of(arguments, "table")
    from knot_runner.cli.show import show_table

    show_table(preset.name, preset.jobs, preset.command)
    return 0
