"""Models that a method names, ``method.teachers`` of a distillation and ``method.models`` of clients with architectures
of their own: their settings in the names' places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knot_runner.util.errors import UserError

#: Keys of a method that list models.
MODEL_LISTS = ("teachers", "models")


def with_models(config: dict[str, Any], model_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A composed, plain ``config`` in which every model that its method names is the settings of a model; ``model_of``
    finds those of a YAML file by its name. One that is a mapping stays. Raises :class:`UserError` naming the key."""
    method = config.get("method")
    if not isinstance(method, dict):
        return config
    for key in MODEL_LISTS:
        if isinstance(method.get(key), list):
            method = {**method, key: _settings(f"method.{key}", method[key], model_of)}
    return {**config, "method": method}


def _settings(key: str, models: list[Any], model_of: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for number, model in enumerate(models):
        if isinstance(model, str):
            try:
                model = model_of(model)
            except UserError as problem:
                raise UserError(f"{key}[{number}]: {problem}") from None
        if not isinstance(model, dict) or not isinstance(model.get("kind"), str):
            raise UserError(f"{key}[{number}]: {model!r} is not the name of a model")
        found.append(model)
    return found
