"""The result of a temperature probe, and its summary for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group

from knot_runner.config.settings.sizes import Positive
from knot_runner.report.records.run_summary import dim_lines
from knot_runner.report.render.terminal import text_line
from knot_runner.results import ClassNames, RunResult


@dataclass(kw_only=True)
class ProbeResult(RunResult):
    """Result of a temperature probe. The probe's arrays are in the file ``probe.safetensors``."""

    labels: ClassNames = field()
    temperatures: list[Positive]
    model: str = ""


def probe_summary(name: str, result: ProbeResult) -> Group:
    """Return the terminal summary of a temperature probe: its model, its temperatures, and how to draw its figures."""
    temperatures = ", ".join(map("{:g}".format, result.temperatures))
    about = f"{result.model} probed at T = {temperatures}; to draw it, use a preset with report.kind=gradients"
    return Group(text_line(name, "bold"), *dim_lines([about], result))
