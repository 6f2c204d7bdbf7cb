"""Checks of a distillation by loss terms: its schedule, terms and teachers; and its student's images, a view of the
task's or images synthesized from its teacher."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.fit import Misfit
from knot_runner.config.settings.checks.methods import named_model
from knot_runner.config.settings.groups import TrainingSettings
from knot_runner.config.settings.methods.distill import DistillSettings, OfflineSchedule, RunTeacher
from knot_runner.config.settings.methods.terms import check_batch
from knot_runner.config.settings.tasks.images import ImageTaskSettings
from knot_runner.config.strict import build
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_student_images(method: DistillSettings, task: Any) -> None:
    """Raises :class:`UserError` where ``method.view`` or ``method.synthesis`` does not fit the task, or each other;
    :class:`Misfit` where no other value would fit, so that a glob of methods skips them."""
    if method.view != "none":
        _check_view(method, task)
    if method.synthesis is not None:
        _check_synthesis(method, task)


def _check_view(method: DistillSettings, task: Any) -> None:
    view = f"method.view={method.view}"
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(f"{view}: works only with images, and task={task.name} has texts. Use none")
    channels, *sides = task.shape
    if task.augment != "none":
        raise UserError(
            f"with {view} teacher and student would see different crops; none is right", f"task.augment={task.augment}"
        )
    if method.view == "gray" and channels != 3:
        raise Misfit(f"{view}: makes one channel of three, and task={task.name} has {channels}; edges or half fits")
    if method.view == "edges" and channels not in (1, 3):
        raise Misfit(
            f"{view}: works only with images of 1 or 3 channels, and those of task={task.name} have {channels}"
        )
    if method.view == "half" and any(side % 2 for side in sides):
        raise UserError(f"needs even sides, and task={task.name} has {sides[0]}x{sides[1]}", view)


def _check_synthesis(method: DistillSettings, task: Any) -> None:
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(f"method.synthesis: makes images, and task={task.name} has texts; null is right")
    if len(method.teachers) != 1:
        raise UserError(
            f"images are made from one teacher, and method.teachers names {len(method.teachers)}", "method.synthesis"
        )
    if method.view != "none":
        raise UserError("method.synthesis makes what the teacher reads; none is right", f"method.view={method.view}")


def check_distill_method(settings: Settings) -> None:
    """Check a distillation's schedule, terms and the student's images, and build the settings of its teachers. Raises
    :class:`UserError`."""
    method, schedule = settings.method, settings.method.schedule
    if schedule.kind != "offline" and method.teachers:
        raise UserError(
            f"works only with schedule.kind=offline; schedule.kind={schedule.kind} trains its own teachers. Use []",
            "method.teachers",
        )
    assert isinstance(settings.training, TrainingSettings)
    batch = settings.training.distill.batch_size
    check_batch(method.terms, "method.terms", batch)
    if isinstance(schedule, OfflineSchedule):
        for number, phase in enumerate(schedule.phases):
            check_batch(phase.terms, f"method.schedule.phases[{number}].terms", batch)
    for number, teacher in enumerate(method.teachers):
        where = f"method.teachers[{number}]"
        method.teachers[number] = teacher_settings(teacher, where, settings)
    check_student_images(method, settings.task)


def teacher_settings(teacher: dict[str, Any], where: str, settings: Settings) -> Any:
    """The settings of a teacher's model; of one that is a finished run, these within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = run.model if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str) else {"kind": ""}
        spec = teacher_settings({**model, "name": run.name}, where, settings)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, settings)
