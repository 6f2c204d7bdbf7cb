"""Checks of a distillation by loss terms: its schedule, terms and teachers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knot_runner.config.settings.checks.fit import TEXT_TEACHER, Misfit
from knot_runner.config.settings.distil.distil import SCHEDULE_SETTINGS, DistilSettings, OfflineSchedule, RunTeacher
from knot_runner.config.settings.distil.terms import TERM_SETTINGS, require_batch
from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS, CustomSettings
from knot_runner.config.strict import build
from knot_runner.util.errors import UserError, nearest


@dataclass(frozen=True)
class OfPlugins:
    """A composed config's plug-ins: ``load()`` imports them, and returns whether there are any; ``check(model)`` raises
    :class:`UserError` for a custom model that none of them defines."""

    load: Callable[[], bool]
    check: Callable[[CustomSettings], None]


def check_distil(method: DistilSettings, task: str, on_images: bool, batch: int, plugins: OfPlugins) -> None:
    """Builds and checks a distillation's nested settings for the named task and batches of ``batch`` examples;
    plain values of teachers are replaced by their settings. An unknown term is left to the run where there are
    plug-ins. Raises :class:`UserError`."""
    kind = method.schedule.get("kind")
    if not isinstance(kind, str) or kind not in SCHEDULE_SETTINGS:
        raise UserError(f"method.schedule.kind: no schedule {kind!r}{nearest(str(kind), SCHEDULE_SETTINGS)}")
    schedule = build(SCHEDULE_SETTINGS[kind], method.schedule, "method.schedule")
    if kind != "offline" and method.teachers:
        raise UserError(
            f"method.teachers: are of schedule.kind=offline; schedule.kind={kind} makes its own, and [] is right"
        )
    _check_terms(method.terms, "method.terms", batch, plugins)
    if isinstance(schedule, OfflineSchedule):
        for number, phase in enumerate(schedule.phases):
            _check_terms(phase.terms, f"method.schedule.phases[{number}].terms", batch, plugins)
    for number, teacher in enumerate(method.teachers):
        where = f"method.teachers[{number}]"
        method.teachers[number] = teacher_settings(teacher, where, task, on_images, plugins)


def teacher_settings(teacher: dict[str, Any], where: str, task: str, on_images: bool, plugins: OfPlugins) -> Any:
    """The settings of a teacher's model; of one that is a finished run, these within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = run.model if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str) else {"kind": ""}
        spec = teacher_settings({**model, "name": run.name}, where, task, on_images, plugins)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, task, on_images, plugins)


def named_model(model: dict[str, Any], where: str, task: str, on_images: bool, plugins: OfPlugins) -> Any:
    """Returns the settings of a model named in a method. Raises :class:`Misfit` for one of another kind than the
    task."""
    if on_images != (model["kind"] in NETWORK_SETTINGS):
        fits = "cnn_32" if on_images else TEXT_TEACHER
        raise Misfit(f"{where}: model {model['name']} does not read task={task}; {fits} would fit")
    spec = build(NETWORK_SETTINGS.get(model["kind"], ModelSettings), model, where)
    if isinstance(spec, CustomSettings):
        plugins.check(spec)
    return spec


def _check_terms(terms: dict[str, dict[str, Any]], where: str, batch: int, plugins: OfPlugins) -> None:
    for name, options in terms.items():
        if name in TERM_SETTINGS:
            build(TERM_SETTINGS[name], options, f"{where}.{name}")
            require_batch(name, batch)
        elif not plugins.load():
            raise UserError(f"{where}.{name}: no such term{nearest(str(name), TERM_SETTINGS)}")
