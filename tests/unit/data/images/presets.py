"""Image tasks as conf/ has them, without what they choose of other groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

PRESETS = Path(__file__).resolve().parents[4] / "conf" / "task"


def task_config(name: str) -> dict[str, Any]:
    """conf/task/NAME.yaml, with what it takes from conf/base/images."""
    own = OmegaConf.load(PRESETS / f"{name}.yaml")
    parts = [str(entry).removesuffix("@_here_") for entry in own.pop("defaults") if str(entry).endswith("@_here_")]
    bases = [OmegaConf.load(PRESETS.parent / f"{part.lstrip('/')}.yaml") for part in parts]
    return OmegaConf.to_container(OmegaConf.merge(*bases, own), resolve=True)
