"""What counts of training in a run's name, and in the keys of what it shares: all but what is at a later default."""

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
    """What counts of rounds of training: all but what is at its default of ``TRAINING_DEFAULTS``."""
    return without(training, *(key for key, default in TRAINING_DEFAULTS.items() if training.get(key) == default))


def used_stragglers(stragglers: dict[str, Any]) -> dict[str, Any]:
    """What counts of slow clients: all but what is at its default of ``STRAGGLER_DEFAULTS``."""
    at_default = (key for key, default in STRAGGLER_DEFAULTS.items() if stragglers.get(key) == default)
    return without(stragglers, *at_default)


def used_of_stage(stage: dict[str, Any]) -> dict[str, Any]:
    """What counts of one training stage: all but what is at its default of ``STAGE_DEFAULTS``. Without milestones the
    rate does not decay."""
    stage = stage if stage.get("milestones") else without(stage, "decay")
    return without(stage, *(key for key, default in STAGE_DEFAULTS.items() if stage.get(key, default) == default))
