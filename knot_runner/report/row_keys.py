"""Which case of a table a federated run belongs to, and which row: temperature, rate control, other settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.run_folders import Job, Run
from knot_runner.util.errors import UserError

#: Settings that a row shows in words of its own.
SHOWN_KEYS = ("method.temperature", "method.lr_control")
#: Case -> dotted setting -> its value, or a list of them.
Cases = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, order=True)
class RowSetting:
    """What a row is of. ``control``: trained at T=1, rate lr / ``temperature``; ``other``: more settings, as text."""

    temperature: float
    control: bool = False
    other: str = ""

    @property
    def head(self) -> str:
        """The training temperature, as the paper prints it."""
        return "1" if self.control else f"{self.temperature:g}"

    @property
    def settings(self) -> str:
        """The rest, "" for plain chilling."""
        rate = f"rate=lr/{self.temperature:g}" if self.control else ""
        return ", ".join(filter(None, (rate, self.other)))

    @property
    def name(self) -> str:
        """Both, in a sentence."""
        rest = f" ({self.other})" if self.other else ""
        return (f"T=1 at rate lr/{self.temperature:g}" if self.control else f"T={self.temperature:g}") + rest


#: Case -> row -> seed -> run.
Grid = dict[str, dict[RowSetting, dict[int, Run]]]


def runs_by_case(runs: Sequence[Run], cases: Cases) -> Grid:
    """``runs`` by case, in the order of ``cases`` (others after them, in the order asked for), row and seed.

    A rate control at T=1 is the T=1 run itself, so it counts once. Raises :class:`UserError` for runs that are not
    federated, ValueError for two unlike runs of one cell.
    """
    members: dict[str, list[Run]] = {name: [] for name in cases}
    for run in runs:
        members.setdefault(case_of(run.job, cases), []).append(run)
    made: Grid = {}
    for case, found in members.items():
        if not found:
            continue
        rows: dict[RowSetting, dict[int, Run]] = defaultdict(dict)
        for run, other in zip(found, others([run.job for run in found], SHOWN_KEYS), strict=True):
            seeds = rows[_setting(run.job, other)]
            if seeds.setdefault(run.job.seed, run).job.run_id != run.job.run_id:
                raise ValueError(f"two runs share {case}, {_setting(run.job, other).name} and seed {run.job.seed}")
        order = sorted(rows, key=lambda key: (key.other, -key.temperature, key.control))
        made[case] = {key: rows[key] for key in order}
    return made


def ordered(found: Grid) -> list[RowSetting]:
    """Every row of any case: hottest first, each rate control below its temperature."""
    keys = {key for rows in found.values() for key in rows}
    return sorted(keys, key=lambda key: (key.other, -key.temperature, key.control))


def row_heads(keys: Sequence[RowSetting]) -> tuple[str, ...]:
    """Heads of the columns that name the rows ``keys``; each row's names are the first so many of head and settings."""
    return ("T", "settings") if any(key.settings for key in keys) else ("T",)


def preset_cases(options: Mapping[str, Any], table: dict[str, Any] | None) -> Cases:
    """What tells cases apart: the preset's ``report.cases``, else those of the printed table.

    Raises :class:`UserError` unless each is a table of settings.
    """
    cases = options.get("cases")
    if cases is None:
        return {name: facts["settings"] for name, facts in table["cases"].items()} if table else {}
    if not isinstance(cases, Mapping) or not all(isinstance(facts, Mapping) and facts for facts in cases.values()):
        raise UserError("report.cases: each case needs settings that tell it, such as {task.name: femnist}")
    return cases


def case_of(job: Job, cases: Cases) -> str:
    """Name of the first of ``cases`` whose settings are all the job's; else its task and model."""
    for name, settings in cases.items():
        if all(lookup(job.config, key) in _listed(wanted) for key, wanted in settings.items()):
            return name
    return f"{job.task}, {lookup(job.config, 'model.name')}"


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted ``key``; None where there is none."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def leaves(values: Mapping[Any, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value in nested ``values`` with its path from the top down; an empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, str(key)))
        else:
            yield (*above, str(key)), value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _setting(job: Job, other: str) -> RowSetting:
    method = job.config.get("method", {})
    if "lr_control" not in method:
        raise UserError(f"{job.task} {job.method}: is not federated, so it has no training temperature to show")
    temperature = float(method["temperature"])
    return RowSetting(temperature, bool(method["lr_control"]) and temperature != 1, other)


def others(jobs: Sequence[Job], shown: Container[str]) -> list[str]:
    """Of each job, the settings in which the ``jobs`` differ, less those that the table has ``shown`` anyhow."""
    told = [{"method.algorithm": lookup(job.config, "method.algorithm"), **_label(job.label)} for job in jobs]
    keys = dict.fromkeys(key for facts in told for key in facts if key not in shown)
    unlike = [key for key in keys if len({facts.get(key) for facts in told}) > 1]
    return [", ".join(f"{key}={facts[key]}" for key in unlike if key in facts) for facts in told]


def _label(label: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in label.split(", ") if part)
    return {key: value for key, _, value in pairs}
