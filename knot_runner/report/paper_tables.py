"""Numbers printed in the papers. Each printed table is a YAML file in ``papers/``.

The files use this project's names of methods and data sets.
"""

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
    """Return the names of the papers' tables, such as ``knot/table2``."""
    names = []
    for path in PAPERS.rglob("*.yaml"):
        if path.name != "reproduce.yaml":
            names.append(path.relative_to(PAPERS).with_suffix("").as_posix())
    return sorted(names)


@dataclass(frozen=True)
class PaperCase:
    """A case in a paper's table, usually a data set and a model.

    Attributes:
        settings: The settings that identify the runs of the case.
        classes: The number of classes, as stated in the paper.
        images: The number of training images, as stated in the paper.
    """

    settings: Config
    classes: int
    images: int


@dataclass(frozen=True)
class PrintedTable:
    """A printed table of a paper. The ``kind`` determines which of the following attributes are set.

    Attributes:
        task: The task of the table.
        columns: The names of the columns, usually names of data sets.
        global_set: The data set on which the global model is tested.
        metrics: ``metrics[metric][method]`` lists the numbers in the columns.
        cases: The cases in the table.
        values: The numbers of each case.
        algorithms: A dict from method to the paper's name of the method.
        uplift: ``uplift[dataset]`` lists, for each column, the mean and standard deviation of the accuracy gain from
            clustering.
        datasets: The data sets of each task.
        accuracy_rounds, loss_rounds: The rounds with a printed accuracy, and the rounds with a printed loss.
        shares: ``shares[task][teacher]`` lists, for each label, the fraction of random texts that the teacher
            assigns to this label.
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
    """Return the printed table with the given name. The table is cached, so do not change it.

    Raises:
        UserError: The name is unknown.
    """
    if name not in printed_tables():
        raise UserError(f"unknown published table {name!r}{nearest(name, printed_tables())}")
    return build(PrintedTable, yaml.safe_load((PAPERS / f"{name}.yaml").read_text(encoding="utf-8")), name)


def printed_value(table: PrintedTable, metric: str, method: str, dataset: str) -> float | None:
    """Return the number that the paper prints for a metric, a method and a data set; None if there is no such number.

    ``table`` must be of kind ``methods``.
    """
    row = table.metrics.get(metric, {}).get(method)
    if row is not None and dataset in table.columns:
        return row[table.columns.index(dataset)]
    return None
