"""Checks of the settings of distillation methods."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.checks import named_model
from knot_runner.config.settings.groups import CentralTraining, ModelSettings
from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.config.settings.methods.distill import RunTeacher
from knot_runner.config.settings.methods.terms import AttentionTermSettings, check_batch
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.config.settings.text_tasks import TaskSettings
from knot_runner.config.strict import build
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import Misfit, UserError

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings


def check_parties_method(settings: Settings) -> None:
    """Check that exactly one data set of a text task has ``role=global``, and exactly one has ``role=transfer``.

    Raises:
        UserError: The number of data sets with one of these roles is not 1.
    """
    if not isinstance(settings.task, TaskSettings):
        return
    roles = [data.role for data in settings.task.datasets.values()]
    for role in ("global", "transfer"):
        count = roles.count(role)
        if count != 1:
            why = f"the method needs exactly one data set with role={role}, but {count} have this role"
            raise settings.misfit("method", "task", why, "Set task.datasets.NAME.role")


def _check_view(settings: Settings) -> None:
    task = settings.task
    chosen = settings.method.view
    view = f"method.view={chosen}"
    why = ""
    hint = ""
    if not isinstance(task, ImageTaskSettings):
        raise settings.misfit("method", "task", f"{view} requires images, but the task has texts")
    channels, *sides = task.shape
    if task.augment != "none":
        why = f"with {view} and task.augment={task.augment}, teacher and student see different crops"
        hint = "Use task.augment=none"
    elif chosen == "gray" and channels != 3:
        why = f"{view} requires images with 3 channels, but the images of this task have {channels}"
        hint = "Use method.view=edges or method.view=half"
    elif chosen == "edges" and channels not in (1, 3):
        why = f"{view} requires images with 1 or 3 channels, but the images of this task have {channels}"
    elif chosen == "half" and any(side % 2 for side in sides):
        raise UserError(f"requires an even height and width, but task={task.name} has {sides[0]}x{sides[1]}", view)
    if why:
        raise settings.misfit("method", "task", why, hint)


def _check_synthesis(settings: Settings) -> None:
    if not settings.on_images:
        raise settings.misfit("method", "task", "method.synthesis generates images, but the task has texts")
    count = len(settings.method.teachers)
    view = settings.method.view
    if count != 1:
        raise UserError(f"requires exactly one teacher in method.teachers, got {count}", "method.synthesis")
    if view != "none":
        raise UserError("not supported with method.synthesis. Use method.view=none", f"method.view={view}")


def check_distill_method(settings: Settings) -> None:
    """Check the settings of ``method=distill``, and convert the items of ``method.teachers`` to settings objects.

    Raises:
        UserError: A setting is invalid.
    """
    method = settings.method
    schedule = settings.method.schedule
    if schedule.kind != "offline" and method.teachers:
        raise UserError(
            f"schedule.kind={schedule.kind} trains its own teachers. Use method.teachers=[]", "method.teachers"
        )
    assert isinstance(settings.training, CentralTraining)
    batch = settings.training.distill.batch_size
    check_batch(method.terms, "method.terms", batch)
    for number, phase in enumerate(getattr(schedule, "phases", [])):
        check_batch(phase.terms, f"method.schedule.phases[{number}].terms", batch)
    for number, teacher in enumerate(method.teachers):
        method.teachers[number] = _teacher_settings(teacher, f"method.teachers[{number}]", settings)
    if method.view != "none":
        _check_view(settings)
    if method.synthesis is not None:
        _check_synthesis(settings)
    _check_maps(settings)


def _check_maps(settings: Settings) -> None:
    """Raise :class:`Misfit` for a term that compares feature maps, if a model has none."""
    method = settings.method
    if not any(isinstance(term, AttentionTermSettings) and term.taps is None for term in method.terms.values()):
        return
    for model in (settings.model, *method.teachers):
        if isinstance(model, RunTeacher):
            model = model.model
        if isinstance(model, ModelSettings | MlpSettings):
            why = f"method.terms.at compares convolutional feature maps, but {model.name} has none"
            raise Misfit(f"method={method.name}", f"model={model.name}", why)


def _teacher_settings(teacher: Config, where: str, settings: Settings) -> Any:
    """Return the settings of a teacher's model; for a finished run, within a :class:`RunTeacher`."""
    if teacher["kind"] == "run":
        run = build(RunTeacher, teacher, where)
        model = {"kind": ""}
        if isinstance(run.model, dict) and isinstance(run.model.get("kind"), str):
            model = run.model
        spec = _teacher_settings({**model, "name": run.name}, where, settings)
        return dataclasses.replace(run, model=spec)
    return named_model(teacher, where, settings)
