"""``knot-runner table PRESET``: ours beside the paper's, from the records."""

from __future__ import annotations

from knot_runner.verbs.preset import preset_of


def table(arguments: list[str]) -> int:
    """Print the preset's table and write it below ``<out>/tables``. Raises :class:`UserError`."""
    preset = preset_of(arguments, "table")
    from knot_runner.show import show_table

    show_table(preset.name, preset.jobs, preset.command)
    return 0
