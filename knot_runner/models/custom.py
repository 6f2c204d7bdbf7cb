"""Custom image models, made by a function given by name."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.models.images import Shape
from knot_runner.util.errors import UserError, nearest


def build_custom_model(spec: CustomSettings, shape: Shape, classes: int) -> nn.Module:
    """Returns the module that ``spec.target`` makes. Raises :class:`UserError` naming the key where there is no such
    function, it fails, or its module lacks the head named in the settings."""
    module_name, _, name = spec.target.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as problem:
        raise UserError(f"model.target: {spec.target} cannot be imported ({problem})") from None
    try:
        model = function(shape, classes, **spec.options)
    except Exception as problem:
        raise UserError(f"model.target: {spec.target} fails ({type(problem).__name__}: {problem})") from None
    if not isinstance(model, nn.Module):
        raise UserError(f"model.target: {spec.target} returns {type(model).__name__}; a torch.nn.Module is right")
    parts = {parameter.rpartition(".")[0] for parameter, _ in model.named_parameters()}
    if not any(part == spec.head or part.startswith(f"{spec.head}.") for part in parts):
        raise UserError(
            f"model.head: {spec.target} has no part '{spec.head}' with parameters{nearest(spec.head, parts)}"
        )
    return model


def check_custom_model(spec: CustomSettings, model: nn.Module, shape: Shape, classes: int) -> None:
    """Raises :class:`UserError` unless ``model`` maps images of ``shape`` to logits of ``classes``."""
    try:
        with torch.no_grad():
            found = model.eval()(torch.zeros(2, *shape))
    except Exception as problem:
        text = str(problem).splitlines()[0] if str(problem) else ""
        raise UserError(f"model.target: {spec.target} fails on images of {list(shape)} ({text})") from None
    if not isinstance(found, Tensor) or found.shape != (2, classes):
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"model.target: {spec.target} maps two images to {what}; logits [2, {classes}] are right")
