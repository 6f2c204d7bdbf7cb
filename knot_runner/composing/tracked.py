"""Default group of runs in a tracker: their preset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def under_preset(config: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A composed, plain ``config`` whose tracker, if any, has the preset in the overrides ``words`` as its group. Run
    ids do not depend on the tracker, so a run made without one stays the same."""
    tracker = config.get("tracker")
    preset = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
    mirrored = isinstance(tracker, dict) and tracker.get("name", "none") != "none"
    if preset is None or not mirrored or tracker.get("group") is not None:
        return config
    return {**config, "tracker": {**tracker, "group": preset}}
