"""The group that a tracker shows runs in, where nobody named one: their preset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def under_preset(config: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A composed, plain ``config`` whose tracker, if there is one, has the preset of the overrides ``words`` as its
    group. No run id counts a tracker, so a run that was made without stays the same one."""
    tracker = config.get("tracker")
    preset = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
    mirrored = isinstance(tracker, dict) and tracker.get("name", "none") != "none"
    if preset is None or not mirrored or tracker.get("group") is not None:
        return config
    return {**config, "tracker": {**tracker, "group": preset}}
