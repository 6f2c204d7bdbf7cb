"""Check of a preset's section ``report:`` before the runs start."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from knot_runner.config.strict import build, without
from knot_runner.report.claims.measures import check_target, measure_of
from knot_runner.report.claims.spec import ClaimSettings
from knot_runner.report.figures.registry import FIGURES, figures_of
from knot_runner.report.run_rows import preset_cases
from knot_runner.report.tables.build import TABLE_KINDS, printed_table
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest


@dataclass(frozen=True)
class ReportSettings(ClaimSettings):
    """The settings in a preset's section ``report:``."""

    kind: str = "methods"
    metrics: list[str] = field(default_factory=list)
    figures: list[str | dict[str, str | int | float]] = field(default_factory=list)
    paper: str | None = None
    reference: str = ""
    cases: Any = None
    notes: list[str] = field(default_factory=list)


def check_report(spec: Config) -> None:
    """Check ``spec``, the section ``report:`` of a preset.

    Raises:
        UserError: ``spec`` has an unknown key or an invalid value.
    """
    kind = spec.get("kind", "methods")
    if not isinstance(kind, str) or (kind not in FIGURES and kind not in TABLE_KINDS):
        raise UserError(
            f"unknown table or figure {kind!r}{nearest(str(kind), [*TABLE_KINDS, *FIGURES])}", "report.kind"
        )
    more: Collection[str] = ()
    if not (TABLE_KINDS.is_built_in(kind) or FIGURES.is_built_in(kind)):  # a plug-in's kind may read further keys
        more = spec.keys() - ReportSettings.__dataclass_fields__.keys()
    elif kind in TABLE_KINDS:
        more = TABLE_KINDS[kind].options
    report = build(ReportSettings, without(spec, *more), "report")
    if kind in TABLE_KINDS:
        printed_table(kind, spec)
    figures_of(spec)
    preset_cases(spec, None)
    for claim in report.claims or ():
        measure_of(claim)
    if report.target is not None or report.needs_target:
        check_target(spec.get("target"))  # as the user typed the number
