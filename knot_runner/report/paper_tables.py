"""The papers' printed numbers: one YAML file per printed table in ``papers/``, with our method and data set names."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from knot_runner.config.plugins import PAPERS
from knot_runner.config.strict import build
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest


def printed_tables() -> list[str]:
    """Return the names of the printed tables, such as ``knot/table2``."""
    names = []
    for path in PAPERS.rglob("*.yaml"):
        if path.name != "reproduce.yaml":
            names.append(path.relative_to(PAPERS).with_suffix("").as_posix())
    return sorted(names)


@dataclass(frozen=True)
class PaperCase:
    """A case in a table of temperatures.

    ``settings`` select the runs of the case. ``images`` and ``classes`` are the paper's numbers of training images and
    classes.
    """

    settings: Config
    classes: int
    images: int


@dataclass(frozen=True)
class PrintedTable:
    """A printed table of a paper. The ``kind`` determines which of the other fields are set.

    A table of kind ``methods`` has ``task``, ``columns`` (including the ``global_set``) and ``metrics`` (metric ->
    method -> row).

    Tables of other kinds have some of these fields:

    - ``cases``, ``values``: the cases, and the numbers in their rows
    - ``algorithms``: method -> the paper's name of the method
    - ``uplift``: the mean gains of clustering
    - ``datasets``: the data sets of each task
    - ``accuracy_rounds``, ``loss_rounds``: the rounds of a printed learning curve
    - ``shares``: the bias of each teacher, as shares of labels
    """

    paper: str
    arxiv: str
    venue: str
    kind: str
    caption: str
    table: int | None = None
    notes: list[str] = field(default_factory=list)
    task: str = ""
    columns: list[Any] = field(default_factory=list)
    global_set: str = ""
    metrics: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cases: dict[str, PaperCase] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    algorithms: dict[str, str] = field(default_factory=dict)
    uplift: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)
    accuracy_rounds: list[int] = field(default_factory=list)
    loss_rounds: list[int] = field(default_factory=list)
    shares: dict[str, dict[str, list[float]]] = field(default_factory=dict)


@cache
def read_printed(name: str) -> PrintedTable:
    """Return the printed table ``name``. Callers must not change the returned table.

    Raises:
        UserError: ``name`` is unknown.
    """
    if name not in printed_tables():
        raise UserError(f"unknown published table {name!r}{nearest(name, printed_tables())}")
    return build(PrintedTable, yaml.safe_load((PAPERS / f"{name}.yaml").read_text(encoding="utf-8")), name)


def printed_value(table: PrintedTable, metric: str, method: str, dataset: str) -> float | None:
    """Return the printed number in a table of kind ``methods``; None if the paper prints none."""
    row = table.metrics.get(metric, {}).get(method)
    if row is not None and dataset in table.columns:
        return row[table.columns.index(dataset)]
    return None
