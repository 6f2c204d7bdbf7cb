"""A kind of table of one's own: accuracy over clients, the mean and that of the worst tenth (Li et al. 2020, q-FFL)."""

import numpy as np

import knot_runner as kr
from knot_runner.report.render.table_model import ColumnGroup, TableRow
from knot_runner.report.run_folders import rounds
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.footnotes import absences
from knot_runner.report.tables.kind import aggregate

SHARES = {"mean of all clients": 1.0, "worst tenth of clients": 0.1}


def fairness(asked):
    found = run_rows(asked.runs)
    groups = tuple(ColumnGroup(name, f"accuracy (%), {name}", ("ALL",), 1, head=name) for name in SHARES)
    rows = []
    for method, own in found.groupby("method", sort=False):
        logs = [rounds(run) for run in own["run"] if run.status == "done"]
        clients = [sorted(100 * share for share in log[-1]["clients"] if share is not None) for log in logs]
        cells = {}
        for name, share in SHARES.items():
            means = [np.mean(one[: max(1, round(share * len(one)))]) for one in clients]
            cells[name] = (aggregate(means, own, top=100.0),)
        rows.append(TableRow((method,), (method,), cells))
    return rows, ("method",), groups, absences(found, found["method"])


kr.TABLE_KINDS["fairness"] = kr.TableKind(fairness)
