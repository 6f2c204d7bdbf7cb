"""``knot-runner plot PRESET``: its figure. ``plot partition``: how images are dealt to clients; trains nothing."""

from __future__ import annotations

from knot_runner.cli.verbs.preset import PRESET_FLAGS, preset_of

PLOT_HELP = f"""\
knot-runner plot PRESET [overrides]: its figure, from the records, as PNG below paths.out
knot-runner plot partition [overrides]: who has which classes; trains nothing

{PRESET_FLAGS}

  knot-runner plot chill_fig4 task=femnist
  knot-runner plot partition task=femnist partition=dirichlet partition.alpha=0.1"""


def plot_command(arguments: list[str]) -> int:
    """Draw below ``<out>/figures`` and print the numbers that are drawn. Raises :class:`UserError`."""
    if arguments[:1] == ["partition"]:
        from knot_runner.cli.show import show_partition
        from knot_runner.composing.commands import compose_all

        jobs, _ = compose_all(arguments[1:])
        for job in jobs:
            show_partition(job)
        return 0
    preset = preset_of(arguments, "plot")
    from knot_runner.cli.show import show_figure

    show_figure(preset.name, preset.jobs, preset.command)
    return 0
