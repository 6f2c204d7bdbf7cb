"""Records of kinds ``coreset`` and ``knn``, coresets and what they classify: whether they can be believed, and at a
glance."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from knot_runner.report.records.checks import Check, Checks, is_count, is_number
from knot_runner.report.records.summary_grid import summary_grid, summary_lines
from knot_runner.report.text import number

DISTANCE_NAMES = {"federated": "the federated distance", "exact": "the exact distance, not federated"}


# ------------------------------------------------------------------------------------------------------------- checks


def _count(value: Any, _: dict[str, Any]) -> bool:
    return is_count(value, 1)


def _shape(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(is_count(side, 1) for side in value)


def _losses(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def _classes(value: Any, _: dict[str, Any]) -> bool:
    names = value.get("names") if isinstance(value, dict) else None
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _sizes(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(part)) for part in ("train", "test"))


def _distance(value: Any, _: dict[str, Any]) -> bool:
    return value in DISTANCE_NAMES


def _remaining(value: Any, result: dict[str, Any]) -> bool:
    """The distance that is left; classes that some point shows are no more than there are."""
    row = value.get("distance") if isinstance(value, dict) else None
    covered = isinstance(result.get("classes_covered"), int) and result["classes_covered"] >= 1
    within = covered and result["classes_covered"] <= len(result["labels"]["names"])
    return isinstance(row, dict) and is_number(row.get("ALL")) and within


def _scores(value: Any, _: dict[str, Any]) -> bool:
    needed = {"accuracy": ("ALL",), "f1": ("ALL",), "client_accuracy": ("weighted", "unweighted")}
    rows = value if isinstance(value, dict) else {}
    return all(
        isinstance(rows.get(metric), dict) and all(is_number(rows[metric].get(key), 1.0) for key in keys)
        for metric, keys in needed.items()
    )


def _seconds(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(key)) for key in ("total", "descent"))


_BOTH: dict[str, Check] = {
    "labels": _classes,
    "points": _count,
    "clients": _count,
    "shape": _shape,
    "datasets": _sizes,
    "distance": _distance,
    "losses": _losses,
    "seconds": _seconds,
}
#: What records of these kinds must hold, and what they may, as in :data:`sound.KINDS`.
CORESET_KEYS: Checks = ({**_BOTH, "metrics": _remaining}, {})
KNN: Checks = ({**_BOTH, "metrics": _scores}, {})


# ------------------------------------------------------------------------------------------------------------ summary


def coreset_summary(name: str, result: dict[str, Any]) -> Group:
    """What the coreset came to: the distance that is left, and the classes that it shows."""
    rows = {
        "distance to all clients' samples": f"{result['metrics']['distance']['ALL']:.4g}",
        "classes among its nearest samples": f"{result['classes_covered']} of {len(result['labels']['names'])}",
    }
    lines = [f"{result['points']} points after {len(result['losses'])} epochs along {_along(result)}"]
    return _table(name, "coreset", rows, lines, result)


def knn_summary(name: str, result: dict[str, Any]) -> Group:
    """How well the clients' coresets classify all test images by the nearest neighbour."""
    metrics = result["metrics"]
    rows = {
        "accuracy": number(metrics["accuracy"]["ALL"], 3),
        "macro F1": number(metrics["f1"]["ALL"], 3),
        "accuracy over clients, each alike": number(metrics["client_accuracy"]["unweighted"], 3),
    }
    lines = [f"{result['points']} points a client along {_along(result)}"]
    return _table(name, "nearest neighbour among all coresets", rows, lines, result)


def _along(result: dict[str, Any]) -> str:
    sizes, seconds = result["datasets"], result["seconds"]
    return (
        f"{DISTANCE_NAMES[result['distance']]}; {result['clients']} clients with {sizes['train']:,} training images; "
        f"{seconds['total']:,.0f} s"
    )


def _table(name: str, head: str, rows: dict[str, str], lines: list[str], result: dict[str, Any]) -> Group:
    table = summary_grid(name, head)
    table.add_column("", justify="right", no_wrap=True)
    for title, value in rows.items():
        table.add_row(title, Text(value, style="bold"))
    return Group(table, *summary_lines(lines, result))
