"""``knot-runner plot PRESET``: its figure. ``plot partition``: how images are dealt to clients; trains nothing."""

from __future__ import annotations

from knot_runner.verbs.preset import preset_of


def plot(arguments: list[str]) -> int:
    """Draw below ``<out>/figures`` and print the numbers that are drawn. Raises :class:`UserError`."""
    if arguments[:1] == ["partition"]:
        from knot_runner.compose import compose_all
        from knot_runner.show import show_partition

        jobs, _ = compose_all(arguments[1:])
        for job in jobs:
            show_partition(job)
        return 0
    preset = preset_of(arguments, "plot")
    from knot_runner.show import show_figure

    show_figure(preset.name, preset.jobs, preset.command)
    return 0
