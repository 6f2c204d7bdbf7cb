"""A run of kind ``distance`` in the terminal: one federated Wasserstein distance."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from knot_runner.report.records.summary_grid import bold, run_view

SECONDS_KEYS = ("total", "federated", "exact")
#: A sum that is larger by less than this share has not risen.
RELATIVE_ROUNDING = 1e-9


def distance_summary(name: str, result: dict[str, Any]) -> Group:
    """The federated distance beside the exact one and the closed form, with the gap, and how it came about."""
    rows = []
    for title, value, seconds in _rows(result):
        time = "" if seconds is None else f"{seconds:.3g} s"
        rows.append((title, [bold(f"{value:.5g}"), _gap(value, result["exact"]), time]))
    heads = ("2-Wasserstein distance", "value", "off the exact one", "time")
    return run_view(name, result, heads, rows, _under(result))


def _gap(value: float, exact: float) -> str:
    """``+0.4%``: how far ``value`` lies off ``exact``, signed; "" for the exact value itself and where it is 0."""
    if not exact or value == exact:
        return ""
    percent = 100 * (value / exact - 1)
    return f"{percent:+.2g}%" if abs(percent) < 100 else f"{percent:+,.0f}%"


def _rows(result: dict[str, Any]) -> list[tuple[str, float, float | None]]:
    last, seconds = len(result["values"]), result["seconds"]
    rows: list[tuple[str, float, float | None]] = [
        (f"federated, after {last} iterations", result["value"], seconds["federated"])
    ]
    for k in dict.fromkeys((1, last)) if result.get("server_only") else ():
        rows.append((f"server alone, after {k}", result["server_only"][k - 1], None))
    return [*rows, ("exact, all samples at one place", result["exact"], seconds["exact"]),
            ("closed form of the distributions", result["closed_form"], None)]  # fmt: skip


def _under(result: dict[str, Any]) -> list[str]:
    first, second = result["samples"]
    sizes, sums = result["support"], result["sums"]
    grown = f"{sizes[0]} points" + (f", {sizes[-1]} in the end" if sizes[-1] != sizes[0] else "")
    rises = sum(after > before * (1 + RELATIVE_ROUNDING) for before, after in zip(sums, sums[1:], strict=False))
    course = f"rises in {rises} of {len(sums) - 1} iterations" if rises else "never rises"
    spent = result.get("spent")
    return [
        f"{first} and {second} samples in {result['dimension']} dimensions; {result['mode']} measures of {grown}",
        f"sum A of the four distances: {sums[0]:.5g} at first, {sums[-1]:.5g} in the end; it {course}",
        *([f"each client has spent epsilon {spent['epsilon']:g}, delta {spent['delta']:g} in all"] if spent else []),
    ]
