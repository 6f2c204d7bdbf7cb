"""What every pipeline is given, and what every result says about itself."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import knot_runner
from knot_runner.settings import Settings

#: (title, finished steps, all steps, short text) -> None; called often
Watch = Callable[[str, int, int, str], None]
#: one line for the user
Say = Callable[[str], None]


@dataclass(frozen=True)
class Errand:
    """One run to carry out: settings, the method's own settings, the run's folder, and whom to tell."""

    settings: Settings
    hp: Any
    folder: Path
    config_yaml: str
    run_id: str
    watch: Watch
    say: Say

    @property
    def data_root(self) -> Path | None:
        """The folder that ``source=local`` reads."""
        data = self.settings.paths.data
        return Path(data).expanduser() if data else None

    def describe(self, data: str, source: str, device: torch.device) -> dict[str, Any]:
        """What any result says, whatever becomes of the run. ``data``: digest of what was read."""
        return {
            "task": self.settings.task.name,
            "source": source,
            "method": self.settings.method["name"],
            "seed": self.settings.seed,
            "data": data,
            "device": str(device),
            "threads": self.settings.hardware.threads,
            "versions": {
                "knot_runner": knot_runner.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
