"""``knot-runner claims PRESET``: which of the paper's claims hold, from the records."""

from __future__ import annotations

from knot_runner.cli.verbs.preset import PRESET_FLAGS, preset_of
from knot_runner.util.errors import UserError

CLAIMS_HELP = f"""\
knot-runner claims PRESET [overrides]: which of the paper's claims hold, with intervals, from the records

{PRESET_FLAGS}

  knot-runner claims chill_table1 task=femnist"""


def claims_command(arguments: list[str]) -> int:
    """Print the verdicts on the preset's claims and write them below ``<out>/claims``.

    Raises :class:`UserError`, also for a preset without claims.
    """
    preset = preset_of(arguments, "claims")
    if not preset.spec.get("claims"):
        raise UserError(f"claims {preset.name}: its YAML has no report.claims; a list of them is what is judged")
    from knot_runner.cli.show import folder_for, references
    from knot_runner.report.claims.verdicts import judge
    from knot_runner.report.claims.view import claims_table, write_claims
    from knot_runner.report.render.terminal import output

    verdicts = judge(references(preset.jobs), preset.spec, preset.command)
    title = f"Claims of {preset.name}"
    output().print(claims_table(title, verdicts))
    for path in write_claims(title, verdicts, folder_for(preset.out, "claims"), preset.name):
        print(path)
    return 0
