"""A run of kind ``coreset`` or ``knn`` in the terminal: coresets and what they classify."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from knot_runner.report.records.summary_grid import bold, run_view
from knot_runner.report.render.text import number

DISTANCE_NAMES = {"federated": "the federated distance", "exact": "the exact distance, not federated"}


def coreset_summary(name: str, result: dict[str, Any]) -> Group:
    """What the coreset came to: the distance that is left, and the classes that it shows."""
    rows = {
        "distance to all clients' samples": f"{result['metrics']['distance']['ALL']:.4g}",
        "classes among its nearest samples": f"{result['classes_covered']} of {len(result['labels']['names'])}",
    }
    line = f"{result['points']} points after {len(result['losses'])} epochs along {_along(result)}"
    return _view(name, "coreset", rows, line, result)


def knn_summary(name: str, result: dict[str, Any]) -> Group:
    """How well the clients' coresets classify all test images by the nearest neighbour."""
    metrics = result["metrics"]
    rows = {
        "accuracy": number(metrics["accuracy"]["ALL"], 3),
        "macro F1": number(metrics["f1"]["ALL"], 3),
        "accuracy over clients, each alike": number(metrics["client_accuracy"]["unweighted"], 3),
    }
    line = f"{result['points']} points a client along {_along(result)}"
    return _view(name, "nearest neighbour among all coresets", rows, line, result)


def _along(result: dict[str, Any]) -> str:
    sizes, seconds = result["datasets"], result["seconds"]
    return (
        f"{DISTANCE_NAMES[result['distance']]}; {result['clients']} clients with {sizes['train']:,} training images; "
        f"{seconds['total']:,.0f} s"
    )


def _view(name: str, head: str, rows: dict[str, str], line: str, result: dict[str, Any]) -> Group:
    return run_view(name, result, (head, ""), [(title, [bold(value)]) for title, value in rows.items()], [line])
