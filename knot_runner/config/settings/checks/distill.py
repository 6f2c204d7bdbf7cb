"""Checks of a distillation by loss terms: its schedule, terms and teachers; and its student's images, a view of the
task's or images synthesized from its teacher."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks.methods import named_model
from knot_runner.config.settings.groups import CentralTraining, ModelSettings
from knot_runner.config.settings.methods.distill import DistillSettings, RunTeacher
from knot_runner.config.settings.methods.terms import AttentionTermSettings, check_batch
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.config.settings.tasks.images import ImageTaskSettings
from knot_runner.config.strict import build
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import Misfit, UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def _check_view(method: DistillSettings, task: Any) -> None:
    one, other, view = f"method={method.name}", f"task={task.name}", f"method.view={method.view}"
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(one, other, f"{view} is of images, and the task has texts")
    channels, *sides = task.shape
    if task.augment != "none":
        why = f"with {view} and task.augment={task.augment} teacher and student would see different crops"
        raise Misfit(one, other, why, "Use task.augment=none")
    if method.view == "gray" and channels != 3:
        why = f"{view} makes one channel of three, and the images have {channels}"
        raise Misfit(one, other, why, "Use method.view=edges or method.view=half")
    if method.view == "edges" and channels not in (1, 3):
        raise Misfit(one, other, f"{view} is of images of 1 or 3 channels, and these have {channels}")
    if method.view == "half" and any(side % 2 for side in sides):
        raise UserError(f"needs even sides, and task={task.name} has {sides[0]}x{sides[1]}", view)


def _check_synthesis(method: DistillSettings, task: Any) -> None:
    if not isinstance(task, ImageTaskSettings):
        why = "method.synthesis makes images, and the task has texts"
        raise Misfit(f"method={method.name}", f"task={task.name}", why)
    count = len(method.teachers)
    if count != 1:
        raise UserError(f"images are made from one teacher, and method.teachers names {count}", "method.synthesis")
    if method.view != "none":
        raise UserError("method.synthesis makes what the teacher reads; none is right", f"method.view={method.view}")


def check_distill_method(settings: Settings) -> None:
    """Check a distillation's schedule, terms and the student's images, and build the settings of its teachers. Raises
    :class:`UserError`."""
    method, schedule = settings.method, settings.method.schedule
    if schedule.kind != "offline" and method.teachers:
        problem = f"works only with schedule.kind=offline; schedule.kind={schedule.kind} trains its own teachers"
        raise UserError(f"{problem}. Use []", "method.teachers")
    assert isinstance(settings.training, CentralTraining)
    batch = settings.training.distill.batch_size
    check_batch(method.terms, "method.terms", batch)
    for number, phase in enumerate(getattr(schedule, "phases", [])):
        check_batch(phase.terms, f"method.schedule.phases[{number}].terms", batch)
    for number, teacher in enumerate(method.teachers):
        method.teachers[number] = _teacher_settings(teacher, f"method.teachers[{number}]", settings)
    if method.view != "none":
        _check_view(method, settings.task)
    if method.synthesis is not None:
        _check_synthesis(method, settings.task)
    _check_maps(settings)


def _check_maps(settings: Settings) -> None:
    """Raises :class:`Misfit` for a term that compares maps of activations where a model has none."""
    method = settings.method
    if not any(isinstance(term, AttentionTermSettings) and term.taps is None for term in method.terms.values()):
        return
    teachers = [teacher.model if isinstance(teacher, RunTeacher) else teacher for teacher in method.teachers]
    for model in (settings.model, *teachers):
        if isinstance(model, ModelSettings | MlpSettings):
            why = f"method.terms.at compares maps of convolutions, and {model.name} has none"
            raise Misfit(f"method={method.name}", f"model={model.name}", why)


def _teacher_settings(teacher: Config, where: str, settings: Settings) -> Any:
    """The settings of a teacher's model; of one that is a finished run, these within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = run.model if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str) else {"kind": ""}
        spec = _teacher_settings({**model, "name": run.name}, where, settings)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, settings)
