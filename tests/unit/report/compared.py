"""Run folders for ``compare``: a composed config and a sound result, without running anything."""

import copy
import json
from typing import Any

import yaml

from knot_runner.config.settings.run_id import run_id
from knot_runner.report.compare.answer import CELL_READING, compare_runs
from knot_runner.report.compare.settings import parse_filter
from knot_runner.report.frame import selected_runs
from knot_runner.report.render.table_model import ColumnGroup, ResultTable, TableCell, TableLayout, TableRow
from knot_runner.report.run_folders import Job
from tests.changed_settings import replaced
from tests.contents import write_content
from tests.unit.report.made_runs import FederatedFactory

CONFIG: dict[str, Any] = {
    "seed": 0,
    "plugins": [],
    "paths": {"data_dir": None, "output_dir": "outputs"},
    "sweep": {"seed": "0,1,2"},
    "report": {"notes": ["a note: with a colon"]},
    "model": {"name": "mlp", "kind": "mlp", "hidden": [8, 4]},
    "training": {"name": "quick", "rounds": 3, "lr": 0.01},
    "method": {"name": "fedavg_chill", "algorithm": "fedavg", "temperature": 1, "lr_control": False},
    "partition": {"kind": "iid", "num_clients": 4},
    "hardware": {"name": "cpu", "engine": "lean", "precision": "float32", "stack": 0},
    "task": {"name": "mnist", "kind": "images", "source": "embedded", "classes": ["0", "1"]},
}


def config(**changes):
    """A composed config; ``method__temperature=4`` sets ``method.temperature``."""
    made = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        made = replaced(made, path.replace("__", "."), value)
    return made


def begun(root, **changes):
    """The folder of a run that has only begun."""
    own = config(**changes)
    folder = root / own["task"]["name"] / own["method"]["name"] / run_id(own)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
    return folder


def made(root, accuracy, told=None, **changes):
    """The folder of a finished run; ``told``: what its result says else."""
    folder = begun(root, **changes)
    own = config(**changes)
    job = Job(folder.name, folder, own["task"]["name"], own["method"]["name"], own["seed"], "", own)
    metrics = {"accuracy": accuracy, "f1": accuracy / 2, "loss": 2 - accuracy, "tempered_loss": 1.0}
    row = metrics | {"client_accuracy": {"weighted": accuracy, "unweighted": accuracy / 3}, "round": 2}
    result = FederatedFactory(root).result(job, [row], classes=2) | {
        "source": "embedded", "data": "d" * 64, "device": "cpu", "threads": 1, "files": [], "rounds": 3,
        "versions": {"knot_runner": "0.1.0", "torch": "2.13.0"}, "datasets": {"train": 100, "test": 40},
        "seconds": {"total": 10.0 + own["seed"]},
    }  # fmt: skip
    write_content(folder, result | (told or {}))
    return folder


def diverged(root, **changes):
    """The folder of a run that diverged."""
    return made(root, 0.5, {"status": "diverged", "metrics": {}}, **changes)


def failed(root, **changes):
    """The folder of a run that failed."""
    folder = begun(root, **changes)
    (folder / "failed.json").write_text(json.dumps({"kind": "error", "cause": "x", "attempts": 1}), encoding="utf-8")
    return folder


def ask(root, *filters, **rest):
    return compare_runs(selected_runs(root, list(map(parse_filter, filters))), **rest)


def heads(table):
    return [*table.heads, *(group.title for group in table.groups)]


def cells(table):
    """Each row's settings, counts, and estimates, None where it has none."""
    settings = table.keys.index("n")
    rows = []
    for row in table.rows:
        measured = [own[0] if own[0].n else None for own in row.cells.values()]
        rows.append((*row.keys[:settings], *map(int, row.keys[settings:]), *measured))
    return rows


def column(table, index):
    return [row[index] for row in cells(table)]


def table_of(names, rows, measures=(), lines=(), title="t"):
    """A table of ``rows``: a setting for each of ``names``, the number of runs, and a cell for each of ``measures``."""
    groups = [ColumnGroup(name, name, ("ALL",), head=name) for name in measures]
    names = [*names, "n"]
    body = []
    for row in rows:
        (*keys, n), found = row[: len(names)], row[len(names) :]
        own = {name: [cell or TableCell()] for name, cell in zip(measures, found, strict=True)}
        body.append(TableRow((*keys, str(n)), (*(key or "" for key in keys), str(n)), own))
    layout = TableLayout(wide_heads=True, splits=True)
    return ResultTable(title, names, groups, body, lines, names, [False] * len(names), CELL_READING, layout)


def text(table):
    return " ".join(table.lines)


def three_temperatures(root):
    """Temperatures 4, 1, 0.05 at three seeds; accuracy rises by .1 as it gets colder and by .02 a seed."""
    for i, temperature in enumerate((4, 1, 0.05)):
        for seed in range(3):
            made(root, 0.5 + 0.1 * i + 0.02 * seed, method__temperature=temperature, seed=seed)
    return root
