"""Runs as rows of a pandas frame, which tables, figures and claims filter, group and average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.metrics import METRICS, beside
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.text import label_settings
from knot_runner.report.run_folders import Job, Run, RunT, finished, lookup
from knot_runner.results import EVALUATED, RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


#: Columns that identify a run, in every frame for users.
IDENTITY = ("run_id", "folder", "task", "method", "seed", "state", "problem")


def run_rows(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row per run, in the given order.

    The columns are :data:`IDENTITY`, ``label``, and ``run`` with the :class:`Run`.
    """
    import pandas as pd

    rows = [{**vars(run), "folder": str(run.folder), "state": run.state, "run": run} for run in runs]
    return pd.DataFrame(rows, columns=[*IDENTITY, "label", "run"], dtype=object)


def one_per_seed(rows: pd.DataFrame, keys: Sequence[str], named: Callable[[Any], str]) -> pd.DataFrame:
    """Return ``rows`` with one run per group and seed; rows with equal columns ``keys`` form a group.

    A run that occurs twice counts once. Raises ValueError if two different runs in a group have the same seed.
    ``named`` returns the name of a row for the error.
    """
    cell = [*keys, "seed"]
    shared = rows.groupby(cell, sort=False)["run_id"].transform("nunique") > 1
    if shared.any():
        first = rows[shared].iloc[0]
        raise ValueError(f"two runs share {named(first)} and seed {first.seed}")
    return rows.drop_duplicates(cell)


#: Case -> dotted setting -> value, or list of accepted values.
Cases = Mapping[str, Config]


def ranks(names: Iterable[Any]) -> dict[Any, int]:
    """Return a dict from each distinct name to its rank; the name that occurs first has rank 0."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def preset_cases(options: Config, table: PrintedTable | None) -> Cases:
    """Return the settings that define cases: the preset's ``report.cases``, or the cases of the printed table.

    Raises:
        UserError: A case is not a mapping of settings.
    """
    cases = options.get("cases")
    if cases is None:
        return {name: facts.settings for name, facts in table.cases.items()} if table else {}
    if not isinstance(cases, Mapping) or not all(isinstance(facts, Mapping) and facts for facts in cases.values()):
        raise UserError("each case needs settings that identify it, such as {task.name: femnist}", "report.cases")
    return cases


def case_of(job: Job, cases: Cases) -> str:
    """Return the name of the first case whose settings the job has; without such a case, the job's task and model."""
    for name, settings in cases.items():
        if job.has(settings):
            return name
    return f"{job.task}, {job.setting('model.name')}"


#: Value of ``evaluated`` in a result -> the kind of evaluated models, as text for a column heading.
MODELS = {"global": "one model", "clusters": "cluster models", "personalized": "own models"}


def variant(key: str, result: RunResult) -> str:
    """Return the kind of the value at the dotted ``key`` of ``result``, as text; "" for values of a single kind.

    Values in one table column must be of the same kind. For a metric or a target, the kind is that of the evaluated
    models (see :data:`MODELS`). For an epsilon, the kind is the neighboring relation and delta.
    """
    group, *parts = key.split(".")
    texts = []
    for other in beside(key):
        value = lookup(result, other)
        if value and not isinstance(value, str):
            value = f"{other.rpartition('.')[2]} {value:g}"
        texts.append(value)
    if texts:
        return ", ".join(filter(None, texts))
    of_predictions = group in ("best", "valid") or key.endswith("_to_target")
    if group == "metrics":
        metric = METRICS.get(parts[0])
        of_predictions = metric is None or metric.is_of_predictions
    if not of_predictions:
        return ""
    return MODELS.get(str(result.evaluated), "")


def variants(key: str, runs: Iterable[Run]) -> list[str]:
    """Return the distinct texts of :func:`variant` for the finished ``runs``, in order; [""] without finished runs."""
    return list(dict.fromkeys(variant(key, run.result) for run in finished(runs))) or [""]


def measured_line(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a line that names the kind of models that the finished ``runs`` evaluate."""
    words = dict.fromkeys(EVALUATED[run.result.evaluated] for run in finished(runs) if run.result.evaluated)
    if words:
        yield f"Measured: {'; '.join(words)}."


def runs_with(runs: Iterable[RunT], key: str, otherwise: str) -> list[RunT]:
    """Return the finished ``runs`` whose result has the dotted ``key``.

    Raises:
        UserError: No run has the key. ``otherwise`` describes the missing number in the message.
    """
    having = [run for run in runs if lookup(run.result, key)]
    if not having:
        raise UserError(f"none of the runs has {otherwise}")
    return having


def leaves(values: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return a dict from dotted key to value for all leaves of nested ``values``. An empty mapping is a leaf."""
    by_key: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            by_key |= leaves(value, f"{above}{key}.")
        else:
            by_key[f"{above}{key}"] = value
    return by_key


def others(jobs: Iterable[Job], shown: Iterable[str]) -> Iterator[str]:
    """Yield, for each job, the settings in which the ``jobs`` differ, as text, without the settings in ``shown``."""
    import pandas as pd

    labels = [{"method.algorithm": job.setting("method.algorithm"), **label_settings(job.label)} for job in jobs]
    settings = pd.DataFrame(labels, dtype=object)
    differing = settings.loc[:, settings.nunique(dropna=False) > 1].drop(columns=list(shown), errors="ignore")
    for _, row in differing.iterrows():
        yield ", ".join(map("=".join, row.dropna().items()))
