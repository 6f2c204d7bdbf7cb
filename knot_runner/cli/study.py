"""``hydra/sweeper=optuna``: a study (hyperparameter search) whose trials are runs with values drawn by Optuna.

The sampler is seeded and sees only the runs' validation metric, so the same command proposes the same trials again and
reuses finished runs. Test metrics are shown for the selected run only and do not affect the selection.
``hydra.sweeper.n_jobs`` trials are drawn at once and run as one grid under the chosen launcher.

Federated runs record all validation metrics on the examples that clients hold out (``partition.valid``). Personalized
runs record only accuracy. Distillation records the metric that selects its epochs: the student's macro F1 on its
validation split or, for mutual learning, the mean macro F1 over parties. KNOT records the student's loss on the
teachers' soft labels of the validation split. This loss depends on the teachers and the loss function, so a KNOT study
can search only the student's training settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from knot_runner.composing.commands import Command, compose_all, expand_preset
from knot_runner.composing.hydra_compose import read_flags
from knot_runner.composing.job import ComposedJob
from knot_runner.composing.overrides import (
    LAUNCHER,
    LAUNCHER_GROUP,
    MAX_JOBS,
    SWEEPER,
    last_counts,
    message_text,
    parse_overrides,
    typed_line,
    values_of,
)
from knot_runner.config.settings.methods.distill import DistillSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.methods.knot import KnotSettings, MutualSettings
from knot_runner.metrics import ACCURACY, METRICS, SCORE
from knot_runner.records import ROUNDS_FILE, read_record, read_result, require_result
from knot_runner.results.federated import FederatedResult
from knot_runner.sweeps.board import EXIT_FAILED, EXIT_USER_ERROR
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import LOGGER, UserError, messages_to, require_extra, unknown
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


#: Prefix of ``report.objective``.
VALID = "valid."
#: Class of a method's settings -> the metric that its runs record on validation examples, if there is exactly one.
RECORDED = {DistillSettings: SCORE, MutualSettings: SCORE, KnotSettings: "loss"}
#: Prefix of the keys that a KNOT study can search, because they change neither soft labels nor loss function.
OF_KNOT = "training.distill."


def study_metric(job: ComposedJob, searched: Iterable[str]) -> str:
    """Return the validation metric of a study over the keys ``searched``.

    The metric is ``report.objective`` if it is set; otherwise the metric that runs of this kind record, by default
    accuracy. Raises :class:`UserError` if the runs record no metric by which trials can be compared.
    """
    method, settings = job.method, job.settings
    recorded_metric = RECORDED.get(type(method), ACCURACY)
    recorded = [recorded_metric]
    if isinstance(method, FederatedSettings):
        if method.personalization is None:
            recorded = list(METRICS)
    elif type(method) not in RECORDED or getattr(method, "synthesis", None) is not None:
        compare = "'knot-runner compare --best=MEASURE --over=KEYS'"
        hint = f"Use a grid, then {compare}. Note that compare selects on test examples"
        raise UserError(f"method={method.name} records no validation metric to compare trials by", SWEEPER, hint=hint)
    shares = settings.shares or settings.held_out or method
    has_parts = type(method) in RECORDED and not settings.on_images  # text data sets have a validation split
    if not has_parts and getattr(shares, "valid", None) is None:
        group = "method" if isinstance(method, DistillSettings) else "partition"
        raise UserError("requires validation examples", SWEEPER, hint=f"Set {group}.valid=0.2")
    known = {f"{VALID}{recorded_name}": recorded_name for recorded_name in recorded}
    name = str((settings.report or {}).get("objective", f"{VALID}{recorded_metric}"))
    if name not in known:
        raise unknown("report.objective", message_text(name), known)
    for key in searched:
        if isinstance(method, KnotSettings) and not key.startswith(OF_KNOT):
            problem = f"cannot be searched: {name} is comparable only between trials with the same teachers and loss"
            raise UserError(problem, key, hint=f"Search {OF_KNOT}*, or use a grid for this key")
    return known[name]


def valid_value(job: ComposedJob, metric: str) -> float | None:
    """Return a finished run's ``metric`` on validation examples; None if the run diverged or is not finished."""
    result = read_result(job.folder)
    if result is None or result.status != "done":
        return None
    if isinstance(result, FederatedResult):
        if result.personalization is not None:
            return result.personalization.points[result.personalization.chosen].valid_accuracy
        return (result.valid or {}).get(metric)
    rows = [json.loads(line) for line in read_record(job.folder, result, ROUNDS_FILE).splitlines()]
    return student_value(rows, metric)


def student_value(rows: list[LogRow], metric: str) -> float | None:
    """Return the validation ``metric`` of the epoch that a distillation selected, from its log ``rows``.

    The value is in the last row that has the key of the method: ``loss`` for KNOT, ``valid`` for mutual learning, and
    ``student`` for other distillations.
    """
    key_names = ("loss",) if metric == "loss" else ("student", "valid")
    values = [row[key] for row in rows if "round" in row for key in key_names if key in row]
    return values[-1] if values else None


#: Keys of a study -> their defaults: number of trials, the sampler's seed, number of trials drawn at once.
SAMPLER_SEED = "hydra.sweeper.sampler.seed"
DEFAULTS = {"hydra.sweeper.n_trials": "20", SAMPLER_SEED: "0", "hydra.sweeper.n_jobs": "1"}


@dataclass(frozen=True)
class Study:
    """A hyperparameter search, as requested on the command line.

    Attributes:
        words: Flags and overrides of all trials.
        space: Overrides that define the search space.
        together: The number of trials that are drawn at once.
    """

    words: list[str]
    space: list[Override]
    trials: int
    seed: int
    together: int
    config_dir: str | None


def run_study(arguments: list[str], sweep: Callable[[Command], int]) -> int:
    """Run every batch of trials as a grid with the function ``sweep``; return the exit code.

    Raises :class:`UserError`; for an invalid request, before the first trial.
    """
    study = _read(arguments)
    require_extra(SWEEPER, "optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {swept.key_or_group: _distribution(swept, study.config_dir) for swept in study.space}
    example = {key: swept.low if hasattr(swept, "low") else swept.choices[0] for key, swept in space.items()}
    metric = study_metric(_grid(study, [example]).jobs[0], space)  # checks settings before any trial
    direction = "maximize" if METRICS[metric].better == "higher" else "minimize"
    # constant_liar: the trials of a batch differ
    sampler = optuna.samplers.TPESampler(seed=study.seed, constant_liar=study.together > 1)
    drawn = optuna.create_study(direction=direction, sampler=sampler)
    best = None
    worst = 0
    for first in range(0, study.trials, study.together):
        trials = [drawn.ask(space) for _ in range(min(study.together, study.trials - first))]
        with messages_to(lambda text: None):  # automatic choices are logged only once
            command = _grid(study, [trial.params for trial in trials])
        for job in command.jobs:
            study_metric(job, space)
        code = sweep(command)
        if code == EXIT_USER_ERROR:
            return code
        for trial, job in zip(trials, command.jobs, strict=True):
            value = valid_value(job, metric)
            if value is None:
                worst, shown = EXIT_FAILED, "no value"
                drawn.tell(trial, None, state=optuna.trial.TrialState.FAIL)
            else:
                shown = f"{value:.4f}"
                drawn.tell(trial, value)
                if drawn.best_trial.number == trial.number:
                    best = job, trial.params, value
            words = " ".join(_words(trial.params))
            LOGGER.info("trial %d of %d: %s: %s%s %s", trial.number + 1, study.trials, words, VALID, metric, shown)
    if best is None:
        raise UserError(f"no trial has a value of {VALID}{metric}. See the messages above", SWEEPER)
    _print_best(study, metric, *best)
    return worst


def _read(arguments: Sequence[str]) -> Study:
    """Return the study of a command line. Raises :class:`UserError`."""
    options = read_flags(arguments)
    values = dict(DEFAULTS)
    rest = []
    for word in options.words:
        key, _, value = word.partition("=")
        if key in values:
            values[key] = value
        elif word != SWEEPER:
            rest.append(word)
    for key, text in values.items():
        if not text.isdecimal() or not (key != SAMPLER_SEED) <= int(text) <= MAX_JOBS:
            raise UserError(f"expected a positive whole number, got {message_text(text)!r}", key)
    words = [flag for flag in options.flags if flag != "--multirun"]
    space = []
    for override in last_counts(parse_overrides(expand_preset(rest, options.config_dir)[0])):
        if not override.is_sweep_override():
            words.append(typed_line(override))
        elif override.key_or_group in ("arm", "seed", "experiment", "task"):
            raise UserError("cannot be searched. Use one value", override.key_or_group)
        else:
            space.append(override)
    if not space:
        hint = "Use, for example, training.lr=tag(log,interval(0.001,1)) or training.lr=0.01,0.1"
        raise UserError("no setting has several values to search", SWEEPER, hint=hint)
    trials, seed, together = map(int, values.values())
    return Study(words, space, trials, seed, together, options.config_dir)


def _distribution(override: Override, config_dir: str | None) -> BaseDistribution:
    """Return the Optuna distribution of an override, with the same rules as Hydra's sweepers.

    Intervals are uniform, or logarithmic with ``tag(log, ...)``. Integer ranges keep their steps. Lists and other
    ranges are categorical.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    if not isinstance(value, IntervalSweep):
        names = values_of(override, config_dir) or []
        if isinstance(value, RangeSweep) and isinstance(value.start, int) and isinstance(value.step, int):
            low, high = sorted((int(names[0]), int(names[-1])))
            return IntDistribution(low, high, step=abs(value.step))
        return CategoricalDistribution(names)
    log = "log" in value.tags
    if not value.start < value.end or (log and value.start <= 0):
        hint = "Use increasing bounds, such as interval(0.001,1). With tag(log, ...), use bounds above 0"
        raise UserError("invalid interval", message_text(typed_line(override)), hint=hint)
    kind = IntDistribution if isinstance(value.start, int) else FloatDistribution
    return kind(value.start, value.end, log=log)


def _grid(study: Study, drawn: Sequence[Config]) -> Command:
    """Return one grid with a run per trial, from the values ``drawn`` for each trial. Raises :class:`UserError`."""
    commands = [compose_all([*study.words, *_words(params)])[1][0] for params in drawn]
    return replace(commands[0], preset=None, jobs=[command.jobs[0] for command in commands], sweep=True)


def _words(params: Config) -> list[str]:
    return [f"{key}={value}" for key, value in params.items()]


def _print_best(study: Study, metric: str, job: ComposedJob, params: Config, value: float) -> None:
    tests = require_result(job.folder).metrics.get(metric, {})
    best_words = _words(params)
    print(f"best of {study.trials} trials: {' '.join(best_words)}")
    print(f"{VALID}{metric} {value:.4f}" + (f"; on the test examples {tests['ALL']:.4f}" if "ALL" in tests else ""))
    words = [word for word in study.words if not word.startswith((LAUNCHER_GROUP, LAUNCHER))]  # not for one run
    print(shlex.join(["knot-runner", *words, *best_words]))
    print(job.folder)
