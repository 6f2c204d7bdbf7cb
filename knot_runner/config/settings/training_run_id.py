"""Training settings that enter the run id and the keys of shared artefacts: settings added later count only off their
default."""

from __future__ import annotations

from typing import Any

from knot_runner.config.strict import without

#: Keys of rounds, and of stages, that came later: at these values a run is what it was before, and has
#: that name.
TRAINING_DEFAULTS = {"optimiser": "sgd"}
STAGE_DEFAULTS = {
    "select": "best",
    "max_length": None,
    "limit": None,
    "optimiser": "adamw",
    "momentum": 0.0,
    "milestones": [],
    "decay": 0.1,
}
#: Of clients that are slow, likewise.
STRAGGLER_DEFAULTS = {"by": "seed"}


def used_of_training(training: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of training rounds: all that differ from ``TRAINING_DEFAULTS``."""
    return without(training, *(key for key, default in TRAINING_DEFAULTS.items() if training.get(key) == default))


def used_stragglers(stragglers: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of stragglers: all that differ from ``STRAGGLER_DEFAULTS``."""
    at_default = (key for key, default in STRAGGLER_DEFAULTS.items() if stragglers.get(key) == default)
    return without(stragglers, *at_default)


def used_of_stage(stage: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings in use of a training stage: all that differ from ``STAGE_DEFAULTS``. ``decay`` counts only
    with milestones."""
    stage = stage if stage.get("milestones") else without(stage, "decay")
    return without(stage, *(key for key, default in STAGE_DEFAULTS.items() if stage.get(key, default) == default))
