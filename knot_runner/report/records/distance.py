"""Records of kind ``distance``, one federated Wasserstein distance: whether they can be believed, and at a glance."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from knot_runner.report.records.checks import Checks, is_count, is_number
from knot_runner.report.records.summary_grid import summary_grid, summary_lines

SECONDS_KEYS = ("total", "federated", "exact")
#: A sum that is larger by less than this share has not risen.
RELATIVE_ROUNDING = 1e-9


# ------------------------------------------------------------------------------------------------------------- checks


def _counts(value: Any, length: int) -> bool:
    whole = isinstance(value, list) and len(value) == length
    return whole and all(is_count(item, 1) for item in value)


def _mode(value: Any, result: dict[str, Any]) -> bool:
    """A mode there is, and the three distances, which may be 0."""
    return value in ("exact", "approximate") and all(
        is_number(result.get(key)) for key in ("value", "exact", "closed_form")
    )


def _course(value: Any, result: dict[str, Any]) -> bool:
    """One number per iteration."""
    return isinstance(value, list) and all(map(is_number, value)) and len(value) == result.get("iterations")


def _server(value: Any, result: dict[str, Any]) -> bool:
    """One number per iteration, or none at all, as with random t."""
    return value == [] or _course(value, result)


def _sizes(value: Any, result: dict[str, Any]) -> bool:
    return isinstance(result.get("iterations"), int) and _counts(value, result["iterations"])


def _samples(value: Any, result: dict[str, Any]) -> bool:
    return _counts(value, 2) and _counts([result.get("dimension"), result.get("ratio")], 2)


def _seconds(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(key)) for key in SECONDS_KEYS)


#: What a record of this kind must hold, and what it may, as in :data:`sound.KINDS`.
DISTANCE: Checks = (
    {
        "mode": _mode,
        "samples": _samples,
        "support": _sizes,
        "values": _course,
        "sums": _course,
        "seconds": _seconds,
    },
    {"server_only": _server},
)


# ------------------------------------------------------------------------------------------------------------ summary


def distance_summary(name: str, result: dict[str, Any]) -> Group:
    """The federated distance beside the exact one and the closed form, with the gap, and how it came about."""
    table = summary_grid(name, "2-Wasserstein distance")
    for heading in ("value", "off the exact one", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for title, value, seconds in _rows(result):
        time = "" if seconds is None else f"{seconds:.3g} s"
        table.add_row(title, Text(f"{value:.5g}", style="bold"), _gap(value, result["exact"]), time)
    return Group(table, *summary_lines(_under(result), result))


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
