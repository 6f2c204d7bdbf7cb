"""Checks of a distillation by loss terms: its schedule, terms and teachers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.methods import OfPlugins, named_model
from knot_runner.config.settings.checks.student_images import check_student_images
from knot_runner.config.settings.distil.distil import SCHEDULE_SETTINGS, DistilSettings, OfflineSchedule, RunTeacher
from knot_runner.config.settings.distil.terms import TERM_SETTINGS, require_batch
from knot_runner.config.strict import build
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_distil_method(settings: Settings, method: DistilSettings, plugins: OfPlugins) -> None:
    """Builds and checks a distillation's nested settings, and checks the student's images; plain values of teachers are
    replaced by their settings. An unknown term is left to the run where there are plug-ins. Raises
    :class:`UserError`."""
    kind = method.schedule.get("kind")
    if not isinstance(kind, str) or kind not in SCHEDULE_SETTINGS:
        raise UserError(f"method.schedule.kind: no schedule {kind!r}{nearest(str(kind), SCHEDULE_SETTINGS)}")
    schedule = build(SCHEDULE_SETTINGS[kind], method.schedule, "method.schedule")
    if kind != "offline" and method.teachers:
        raise UserError(
            f"method.teachers: are of schedule.kind=offline; schedule.kind={kind} makes its own, and [] is right"
        )
    batch = settings.training.distil.batch
    check_terms(method.terms, "method.terms", batch, plugins)
    if isinstance(schedule, OfflineSchedule):
        for number, phase in enumerate(schedule.phases):
            check_terms(phase.terms, f"method.schedule.phases[{number}].terms", batch, plugins)
    for number, teacher in enumerate(method.teachers):
        where = f"method.teachers[{number}]"
        method.teachers[number] = teacher_settings(teacher, where, settings, plugins)
    check_student_images(method, settings.task)


def teacher_settings(teacher: dict[str, Any], where: str, settings: Settings, plugins: OfPlugins) -> Any:
    """The settings of a teacher's model; of one that is a finished run, these within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = run.model if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str) else {"kind": ""}
        spec = teacher_settings({**model, "name": run.name}, where, settings, plugins)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, settings, plugins)


def check_terms(
    terms: dict[str, dict[str, Any]], where: str, batch: int, plugins: OfPlugins, key: str = "training.distil.batch"
) -> None:
    """Builds the settings of loss terms, the value of the setting ``where``; ``batch``: of ``key``. An unknown term is
    left to the run where there are plug-ins. Raises :class:`UserError`."""
    for name, options in terms.items():
        if name in TERM_SETTINGS:
            build(TERM_SETTINGS[name], options, f"{where}.{name}")
            require_batch(name, batch, key, where)
        elif not plugins.load():
            raise UserError(f"{where}.{name}: no such term{nearest(str(name), TERM_SETTINGS)}")
