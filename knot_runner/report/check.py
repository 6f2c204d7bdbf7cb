"""Checks a preset's ``report:`` before its runs, which may take hours, rather than when its table is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knot_runner.report.claims.measures import measure_of
from knot_runner.report.claims.spec import planned_seeds, read_claims
from knot_runner.report.figures.registry import FIGURES, figure_names
from knot_runner.report.tables.build import TABLE_KINDS, printed_table
from knot_runner.util.errors import UserError, nearest

#: What ``report:`` may say.
KEYS = ("kind", "metrics", "figures", "paper", "reference", "target", "cases", "seeds", "claims", "unlike", "notes")


def check_report(spec: Mapping[str, Any]) -> None:
    """Raises :class:`UserError` for an unknown kind, metric, figure, printed table or measure of a claim in ``spec``,
    and for a claim or number of seeds that is none."""
    kind = spec.get("kind", "methods")
    if not isinstance(kind, str) or (kind not in FIGURES and kind not in TABLE_KINDS):
        raise UserError(
            f"there is no table or figure {kind!r}{nearest(str(kind), [*TABLE_KINDS, *FIGURES])}", "report.kind"
        )
    if TABLE_KINDS.is_built_in(kind) or FIGURES.is_built_in(kind):  # those of a plug-in may read keys of their own
        for key in spec:
            if key not in KEYS:
                raise UserError(f"there is no such setting{nearest(str(key), KEYS)}", f"report.{key}")
    if kind in TABLE_KINDS:
        _check_table(kind, spec)
    figure_names(spec)
    planned_seeds(spec)
    for claim in read_claims(spec):
        measure_of(claim)


def _check_table(kind: str, spec: Mapping[str, Any]) -> None:
    metrics = spec.get("metrics", TABLE_KINDS[kind].usual)
    if not isinstance(metrics, list | tuple) or not all(isinstance(metric, str) for metric in metrics):
        raise UserError(f"expected a list of names, got {metrics!r}", "report.metrics")
    printed_table(TABLE_KINDS[kind], kind, spec.get("paper"), metrics)
