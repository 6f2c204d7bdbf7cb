"""Distance matrices of several runs: grouping by setting, and agreement of FedWaD with the exact distances."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import lookup, others
from knot_runner.report.statistics.association import Agreement, agreement_of
from knot_runner.util.errors import UserError

FEDWAD = {"support": "S", "iterations": "K", "t": "t"}
#: Settings already in a title.
MATRIX_KEYS = ("method.otdd.solver", *(f"method.otdd.fedwad.{key}" for key in FEDWAD))
#: Title -> seed -> run.
RunsBySetting = dict[str, dict[int, Run]]


def by_setting(runs: Sequence[Run]) -> RunsBySetting:
    """Runs by title and seed, in their order. An exact distance has neither S, K nor t, so it counts once.

    Raises :class:`UserError` for runs that measured no distances.
    """
    only_matrices(runs)
    several = len({run.job.task for run in runs}) > 1
    found: RunsBySetting = {}
    for run, other in zip(runs, others([run.job for run in runs], MATRIX_KEYS), strict=True):
        title = ", ".join(filter(None, (run.job.task if several else "", other, name_of(run))))
        found.setdefault(title, {}).setdefault(run.job.seed, run)
    return found


def only_matrices(runs: Sequence[Run]) -> None:
    """Raises :class:`UserError` naming a run that measured no distances between data sets."""
    strange = next((run for run in runs if run.result.get("kind") != "matrix"), None)
    if strange is not None:
        raise UserError(f"{strange.job.task} {strange.job.method}: measured no distances between data sets")


def name_of(run: Run) -> str:
    """``exact``, or ``FedWaD, S=10, K=20, t=0.5``."""
    if run.result["solver"] == "exact":
        return "exact"
    fedwad = lookup(run.job.config, "method.otdd.fedwad") or {}
    return ", ".join(["FedWaD", *(f"{short}={fedwad.get(key)}" for key, short in FEDWAD.items())])


def agreements(runs: Sequence[Run], all_runs: Sequence[Run]) -> list[Agreement]:
    """Agreement of each non-exact run in ``runs`` with the exact one on the same samples in ``all_runs``; none for
    samples without an exact run or without an order of distances."""
    exact = {_samples_of(run): matrix_of(run) for run in all_runs if run.result["solver"] == "exact"}
    ours = [run for run in runs if run.result["solver"] != "exact" and _samples_of(run) in exact]
    found = (matrix_agreement(matrix_of(run), exact[_samples_of(run)]) for run in ours)
    return [agreement for agreement in found if agreement is not None]


def _samples_of(run: Run) -> str:
    """Key shared by runs that measured the same distances between the same samples."""
    otdd = lookup(run.job.config, "method.otdd") or {}
    kept = {key: value for key, value in otdd.items() if key not in ("solver", "fedwad", "precision")}
    data = {key: run.job.config.get(key) for key in ("task", "partition")}
    return json.dumps([run.job.seed, run.result["names"], kept, data], sort_keys=True)


def matrix_agreement(matrix: np.ndarray, exact: np.ndarray) -> Agreement | None:
    """Agreement of ``matrix`` with ``exact``, both [N, N]; None for N < 3 or if all distances of one are equal."""
    pairs = np.triu_indices(len(exact), 1)
    return agreement_of(matrix[pairs], exact[pairs])


def matrix_of(run: Run) -> np.ndarray:
    """Squared distances [N, N]."""
    return np.array(run.result["matrix"], dtype=float)


def pairs_of(run: Run) -> list[tuple[str, str, float]]:
    """(name, name, squared distance) of each pair of data sets."""
    names, matrix = run.result["names"], matrix_of(run)
    return [(names[i], names[j], matrix[i, j]) for i, j in zip(*np.triu_indices(len(names), 1), strict=True)]
