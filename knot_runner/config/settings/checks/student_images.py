"""Whether a student can see a view of a task's images, or images made from its teacher."""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.checks.fit import Misfit
from knot_runner.config.settings.distil.distil import DistilSettings
from knot_runner.config.settings.distil.synthesis import SYNTHESIS_SETTINGS
from knot_runner.config.settings.tasks.images import ImageTaskSettings
from knot_runner.config.strict import build
from knot_runner.util.errors import UserError, nearest


def check_student_images(method: DistilSettings, task: Any) -> None:
    """Raises :class:`UserError` where ``method.view`` or ``method.synthesis`` does not fit the task, or each other;
    :class:`Misfit` where no other value of theirs would do, so that a glob of methods leaves them out."""
    if method.view != "none":
        _check_view(method, task)
    if method.synthesis is not None:
        _check_synthesis(method, task)


def _check_view(method: DistilSettings, task: Any) -> None:
    view = f"method.view={method.view}"
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(f"{view}: is of images, and task={task.name} has texts; none is right")
    channels, *sides = task.shape
    if task.augment != "none":
        raise UserError(
            f"task.augment={task.augment}: with {view} teacher and student would see different crops; none is right"
        )
    if method.view == "grey" and channels != 3:
        raise Misfit(f"{view}: makes one channel of three, and task={task.name} has {channels}; edges or half fits")
    if method.view == "edges" and channels not in (1, 3):
        raise Misfit(f"{view}: is of images with 1 or 3 channels, and task={task.name} has {channels}")
    if method.view == "half" and any(side % 2 for side in sides):
        raise UserError(f"{view}: needs even sides, and task={task.name} has {sides[0]}x{sides[1]}")


def _check_synthesis(method: DistilSettings, task: Any) -> None:
    kind = method.synthesis.get("kind")
    if not isinstance(kind, str) or kind not in SYNTHESIS_SETTINGS:
        raise UserError(f"method.synthesis.kind: no synthesis {kind!r}{nearest(str(kind), SYNTHESIS_SETTINGS)}")
    build(SYNTHESIS_SETTINGS[kind], method.synthesis, "method.synthesis")
    if not isinstance(task, ImageTaskSettings):
        raise Misfit(f"method.synthesis: makes images, and task={task.name} has texts; null is right")
    if len(method.teachers) != 1:
        raise UserError(
            f"method.synthesis: images are made from one teacher, and method.teachers names {len(method.teachers)}"
        )
    if method.view != "none":
        raise UserError(f"method.view={method.view}: method.synthesis makes what the teacher reads; none is right")
