"""Runs as rows of a pandas frame."""

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
    """Return a frame with one row per run, in the order of ``runs``.

    The columns are ``label``, ``run`` and those in :data:`IDENTITY`. The column ``run`` contains the :class:`Run`.
    """
    import pandas as pd

    rows = [{**vars(run), "folder": str(run.folder), "state": run.state, "run": run} for run in runs]
    return pd.DataFrame(rows, columns=[*IDENTITY, "label", "run"], dtype=object)


def one_per_seed(rows: pd.DataFrame, keys: Sequence[str], named: Callable[[Any], str]) -> pd.DataFrame:
    """Return ``rows`` with one row per group and seed. Repeated rows of the same run are dropped.

    Args:
        rows: A frame of runs, see :func:`run_rows`.
        keys: The columns that define the groups. The rows of a group have equal values in these columns.
        named: A function that returns the name of a row for the error message.

    Raises:
        ValueError: Two different runs in a group have the same seed.
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
    """Return a dict from each distinct name to its rank, counted from 0 in order of first occurrence."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def preset_cases(options: Config, table: PrintedTable | None) -> Cases:
    """Return the cases of a preset. A case is a group of runs, such as all runs on one data set.

    The result is a dict from the name of a case to the settings that identify the runs of the case.

    Args:
        options: The preset's section ``report:``. The key ``cases`` defines the cases.
        table: The paper's table, or None. If ``options`` has no ``cases``, the cases of this table are returned.

    Raises:
        UserError: The key ``cases`` does not map the name of each case to settings.
    """
    cases = options.get("cases")
    if cases is None:
        return {name: facts.settings for name, facts in table.cases.items()} if table else {}
    if not isinstance(cases, Mapping) or not all(isinstance(facts, Mapping) and facts for facts in cases.values()):
        raise UserError("each case needs settings that identify it, such as {task.name: femnist}", "report.cases")
    return cases


def case_of(job: Job, cases: Cases) -> str:
    """Return the name of the first case that matches the settings of a job.

    If no case matches, return a text with the job's task and model.
    """
    for name, settings in cases.items():
        if job.has(settings):
            return name
    return f"{job.task}, {job.setting('model.name')}"


#: Value of ``evaluated`` in a result -> the kind of evaluated models, as text for a column heading.
MODELS = {"global": "one model", "clusters": "cluster models", "personalized": "own models"}


def variant(key: str, result: RunResult) -> str:
    """Return the variant of a measure in ``result``, as text. Only values of the same variant can be compared.

    - For metrics of predictions and for the cost of reaching a target accuracy, the variant states which models
      were evaluated, such as "cluster models" (see :data:`MODELS`).
    - For epsilon, the variant consists of the neighboring relation and delta.
    - For other measures, the variant is "".

    ``key`` is the dotted key of the measure in the result.
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
    """Return the distinct variants of a measure in the finished ``runs``, in order of first occurrence.

    ``key`` is the dotted key of the measure, see :func:`variant`. Without finished runs, the result is [""].
    """
    return list(dict.fromkeys(variant(key, run.result) for run in finished(runs))) or [""]


def measured_line(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a footnote that states which models were evaluated in the finished ``runs``.

    If no result states this, yield nothing.
    """
    words = dict.fromkeys(EVALUATED[run.result.evaluated] for run in finished(runs) if run.result.evaluated)
    if words:
        yield f"Measured: {'; '.join(words)}."


def runs_with(runs: Iterable[RunT], key: str, otherwise: str) -> list[RunT]:
    """Return the runs whose result has a value at a dotted key.

    Args:
        runs: The finished runs.
        key: The dotted key.
        otherwise: The end of the error message, after "none of the runs has".

    Raises:
        UserError: No run has such a value.
    """
    having = [run for run in runs if lookup(run.result, key)]
    if not having:
        raise UserError(f"none of the runs has {otherwise}")
    return having


def leaves(values: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return nested ``values`` as a flat dict from dotted key to value.

    An empty mapping counts as a value. ``above`` is a text that is put before each key.
    """
    by_key: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            by_key |= leaves(value, f"{above}{key}.")
        else:
            by_key[f"{above}{key}"] = value
    return by_key


def others(jobs: Iterable[Job], shown: Iterable[str]) -> Iterator[str]:
    """Yield a text for each job, such as ``method.mu=0.1, model.name=cnn``.

    The text lists the settings in which the jobs differ, except the settings in ``shown``.
    """
    import pandas as pd

    labels = [{"method.algorithm": job.setting("method.algorithm"), **label_settings(job.label)} for job in jobs]
    settings = pd.DataFrame(labels, dtype=object)
    differing = settings.loc[:, settings.nunique(dropna=False) > 1].drop(columns=list(shown), errors="ignore")
    for _, row in differing.iterrows():
        yield ", ".join(map("=".join, row.dropna().items()))
