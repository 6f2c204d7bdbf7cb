"""Terminal summary of a distillation by loss terms."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from knot_runner.metrics import METRICS
from knot_runner.report.records.run_view import SummaryRow, bold, cost_lines, run_view
from knot_runner.report.render.text import number, plain
from knot_runner.results.base import TermFacts
from knot_runner.results.training import DistillResult


def distill_summary(name: str, result: DistillResult) -> Group:
    """The student's measures, those of the models trained for it, and the weight and first size of every term."""
    measures = [metric for metric in METRICS if metric in result.metrics]
    rows: list[SummaryRow] = [("student", [_value(result.metrics[metric]["ALL"]) for metric in measures])]
    for model, own in (result.baselines or {}).items():
        rows.append((model, [_value(own.get(metric)) for metric in measures]))
    lines = ["on the test set; SD: semantic distance, lower is better"]
    for place, phase in enumerate(result.phases or [], 1):
        lines += [f"phase {place}, {phase.epochs} epochs: {line}" for line in _term_lines(phase.terms)]
    lines += _term_lines(result.terms)
    if made := result.synthesis:
        released = made.released
        size = f"{plain(released.kind)}, {released.floats:,} numbers, {released.bytes:,} bytes"
        lines.append(f"{made.images:,} images made by {plain(made.kind)}; released: {size}")
    lines.append(f"kept: the weights of epoch {result.selected_epoch}")
    lines += cost_lines(result)
    heads = ["model", *(METRICS[metric].short or METRICS[metric].title for metric in measures)]
    return run_view(name, result, heads, rows, lines)


def _term_lines(terms: dict[str, TermFacts]) -> list[str]:
    return [
        f"{plain(term)}: weight {own.weight:.3g}, at first {own.ratio:.3g} times the cross-entropy"
        for term, own in terms.items()
    ]


def _value(value: float | None) -> Any:
    return bold(number(value, 3) if value is not None else "-")
