"""Teachers of a distillation: models named in ``method.teachers``, and their settings in the names' places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knot_runner.util.errors import UserError


def with_teachers(config: dict[str, Any], model_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A composed, plain ``config`` in which every teacher is the settings of a model; ``model_of`` finds those of a
    YAML file by its name. A teacher that is a mapping stays. Raises :class:`UserError` naming the key."""
    method = config.get("method")
    teachers = method.get("teachers") if isinstance(method, dict) else None
    if not isinstance(teachers, list):
        return config
    found = []
    for number, teacher in enumerate(teachers):
        if isinstance(teacher, str):
            try:
                teacher = model_of(teacher)
            except UserError as problem:
                raise UserError(f"method.teachers[{number}]: {problem}") from None
        if not isinstance(teacher, dict) or not isinstance(teacher.get("kind"), str):
            raise UserError(f"method.teachers[{number}]: {teacher!r} is not the name of a model")
        found.append(teacher)
    return {**config, "method": {**method, "teachers": found}}
