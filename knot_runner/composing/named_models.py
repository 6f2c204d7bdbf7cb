"""Replaces model names in a method (``method.teachers`` of a distillation, ``method.models`` of clients with different
architectures) by the models' settings. A teacher may also be a finished run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from knot_runner.composing.teachers import RUN_PREFIX, teacher_run
from knot_runner.util.errors import UserError

#: Keys of a method that list models.
MODEL_LISTS = ("teachers", "models")


def with_models(config: dict[str, Any], model_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A composed, plain ``config`` with every model name of its method replaced by the model's settings, which
    ``model_of`` reads from the YAML file of that name. Mappings are kept; a teacher may be a finished run (``run:`` and
    its id or folder, :func:`teacher_run`). Raises :class:`UserError` naming the key."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    for key in MODEL_LISTS:
        if isinstance(method.get(key), list):
            of_runs = partial(teacher_run, config=config) if key == "teachers" else None
            method = {**method, key: _settings(f"method.{key}", method[key], model_of, of_runs)}
    return {**config, "method": method}


def _settings(
    key: str,
    models: list[Any],
    model_of: Callable[[str], dict[str, Any]],
    of_runs: Callable[..., dict[str, Any]] | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Settings of each of ``models``. ``of_runs``: settings of a finished run; None if only models are allowed."""
    found = []
    for number, model in enumerate(models):
        if isinstance(model, str):
            try:
                is_run = of_runs is not None and model.startswith(RUN_PREFIX)
                model = of_runs(model) if is_run else model_of(model)
            except UserError as problem:
                raise UserError(f"{key}[{number}]: {problem}") from None
        if not isinstance(model, dict) or not isinstance(model.get("kind"), str):
            raise UserError(f"{key}[{number}]: {model!r} is not the name of a model")
        found.append(model)
    return found
