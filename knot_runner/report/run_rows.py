"""Runs as rows of a frame, which tables, figures and claims filter, group and average.

Federated runs also have their case and row in a table: temperature, rate control, other settings.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knot_runner import metrics
from knot_runner.metrics import METRICS, beside
from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.text import label_settings
from knot_runner.report.run_folders import Job, Run, RunT, finished, is_finished, lookup
from knot_runner.results.base import EVALUATED, RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def run_rows(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row per run, in the given order.

    Columns: ``task``, ``method``, ``label``, ``seed``, ``run_id``, ``status``, ``run``.
    """
    import pandas as pd

    columns = ["task", "method", "label", "seed", "run_id", "status", "run"]
    return pd.DataFrame([{**vars(run), "run": run} for run in runs], columns=columns, dtype=object)


def one_per_seed(rows: pd.DataFrame, place: Sequence[str], named: Callable[[Any], str]) -> pd.DataFrame:
    """Return ``rows`` with one run per seed and value of the columns ``place``. Equal runs count once.

    ``named`` returns the name of a row's place for the error.

    Raises:
        ValueError: Two different runs have the same seed and place.
    """
    keys = [*place, "seed"]
    shared = rows.groupby(keys, sort=False)["run_id"].transform("nunique") > 1
    if shared.any():
        first = rows[shared].iloc[0]
        raise ValueError(f"two runs share {named(first)} and seed {first.seed}")
    return rows.drop_duplicates(keys)


#: Settings that a row describes by itself.
SHOWN_KEYS = ("method.temperature", "method.lr_control")
#: The metric by which cases are told apart.
OVERALL = f"metrics.{metrics.ACCURACY}.ALL"
#: Case -> dotted setting -> its value, or a list of them.
Cases = Mapping[str, Config]


@dataclass(frozen=True, order=True)
class RowSetting:
    """Key of a row.

    ``control``: trained at T=1 with learning rate lr / ``temperature``; ``other``: further settings, as text.
    """

    temperature: float
    control: bool = False
    other: str = ""

    @property
    def head(self) -> str:
        """Return the training temperature, as the paper prints it."""
        return "1" if self.control else f"{self.temperature:g}"

    @property
    def settings(self) -> str:
        """Return the other settings, "" for plain chilling."""
        rate = f"rate=lr/{self.temperature:g}" if self.control else ""
        return ", ".join(filter(None, (rate, self.other)))

    @property
    def name(self) -> str:
        """Return temperature and other settings, for use in a sentence."""
        rest = f" ({self.other})" if self.other else ""
        return (f"T=1 at rate lr/{self.temperature:g}" if self.control else f"T={self.temperature:g}") + rest


def case_rows(runs: Sequence[Run], cases: Cases) -> pd.DataFrame:
    """Return ``runs`` as in :func:`run_rows` plus their ``case`` and row (``key``, a :class:`RowSetting`).

    There is one row per seed, in the order of ``cases`` (others after them, as requested) and of :func:`hottest_first`.
    A case whose runs measure several kinds of models (:func:`variant`) is divided by them. A rate control at T=1 is the
    T=1 run, so it counts once.

    Raises:
        UserError: A run is not federated.
        ValueError: Two different runs have the same cell.
    """
    rows = run_rows(runs)
    rows["case"] = [case_of(run, cases) for run in runs]
    for case, own in rows.groupby("case", sort=False):
        shown = variants(OVERALL, own["run"])
        for i, run in zip(own.index, own["run"], strict=True):
            if is_finished(run) and variant(OVERALL, run.result) != shown[0]:
                rows.loc[i, "case"] = f"{case}, {variant(OVERALL, run.result)}"
    for _, own in rows.groupby("case", sort=False):
        for i, run, other in zip(own.index, own["run"], others(own["run"], SHOWN_KEYS), strict=True):
            temperature, control = (run.setting(key) for key in SHOWN_KEYS)
            if control is None:
                raise UserError(f"task={run.task} method={run.method}: not federated, so without training temperature")
            rows.loc[i, "key"] = RowSetting(float(temperature), control and temperature != 1, other)
    rows = one_per_seed(rows, ["case", "key"], lambda row: f"{row.case}, {row.key.name}")
    place = ranks([*cases, *rows["case"]])
    keys = ranks(hottest_first(rows["key"]))
    order = rows["case"].map(place) * len(keys) + rows["key"].map(keys)
    return rows.loc[order.sort_values(kind="stable").index]


def ranks(names: Iterable[Any]) -> dict[Any, int]:
    """Return name -> its position among the distinct ``names``, in order of first occurrence."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def hottest_first(keys: Iterable[RowSetting]) -> list[RowSetting]:
    """Return distinct ``keys``, highest temperature first, each rate control after its temperature."""
    return sorted(set(keys), key=lambda key: (key.other, -key.temperature, key.control))


def row_heads(keys: Sequence[RowSetting]) -> tuple[str, ...]:
    """Return the heads of the columns that name the rows ``keys``: as many as these need."""
    return ("T", "settings") if any(key.settings for key in keys) else ("T",)


def preset_cases(options: Config, table: PrintedTable | None) -> Cases:
    """Return the settings that define cases: the preset's ``report.cases``, or those of the printed table.

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
    """Return the name of the first of ``cases`` whose settings the job has; otherwise its task and model."""
    for name, settings in cases.items():
        if job.has(settings):
            return name
    return f"{job.task}, {job.setting('model.name')}"


#: ``evaluated`` of a result -> how columns are told apart that hold one kind of models each.
MODELS = {"global": "one model", "clusters": "cluster models", "personalized": "own models"}


def variant(key: str, result: RunResult) -> str:
    """Return, as text, the property that a column of the dotted ``key`` must not mix; "" if there is none.

    For a metric, or a target, it is the kind of models that were evaluated. For an epsilon, it is the neighboring
    relation and delta.
    """
    group, *parts = key.split(".")
    second = [(other.rpartition(".")[2], lookup(result, other)) for other in beside(key)]
    if second:
        return ", ".join(value if isinstance(value, str) else f"{name} {value:g}" for name, value in second if value)
    metric = METRICS.get(parts[0]) if parts else None
    computed = metric is None or metric.is_of_predictions
    of_predictions = (group == "metrics" and computed) or group in ("best", "valid")
    if not of_predictions and not key.endswith("_to_target"):
        return ""
    return MODELS.get(str(result.evaluated), "")


def variants(key: str, runs: Iterable[Run]) -> list[str]:
    """Return the distinct :func:`variant` of the finished ``runs``, in order; [""] if there are none."""
    return list(dict.fromkeys(variant(key, run.result) for run in finished(runs))) or [""]


def measured_line(runs: Iterable[Run]) -> list[str]:
    """Return a line on the kind of models that were evaluated in the finished ``runs``."""
    words = dict.fromkeys(EVALUATED[run.result.evaluated] for run in finished(runs) if run.result.evaluated)
    return [f"Measured: {'; '.join(words)}."] if words else []


def runs_with(runs: Iterable[RunT], key: str, otherwise: str) -> list[RunT]:
    """Return the finished ``runs`` whose result has the dotted ``key``.

    Raises:
        UserError: None has it. The message names ``otherwise`` as missing.
    """
    found = [run for run in runs if lookup(run.result, key)]
    if not found:
        raise UserError(f"none of the runs has {otherwise}")
    return found


def leaves(values: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Return dotted key -> value of all leaves of nested ``values``. An empty mapping is a leaf."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def others(jobs: Iterable[Job], shown: Container[str]) -> list[str]:
    """Return for each job the settings in which the ``jobs`` differ, without those already ``shown``."""
    facts = [{"method.algorithm": job.setting("method.algorithm"), **label_settings(job.label)} for job in jobs]
    keys = dict.fromkeys(key for own in facts for key in own if key not in shown)
    unlike = [key for key in keys if len({own.get(key) for own in facts}) > 1]
    return [", ".join(f"{key}={own[key]}" for key in unlike if key in own) for own in facts]
