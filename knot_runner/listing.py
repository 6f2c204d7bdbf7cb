"""What ``ls`` shows, read from the heads of the YAML files alone, so that it answers at once."""

from __future__ import annotations

import math
from pathlib import Path

import yaml

PACKAGE = Path(__file__).resolve().parent
GROUPS = ("task", "partition", "model", "encoder", "method", "training", "hardware", "tracker", "experiment")


def config_folder() -> Path:
    """``conf/`` of the checkout, or the copy that the wheel carries."""
    beside = PACKAGE.parent / "conf"
    return beside if (beside / "config.yaml").is_file() else PACKAGE / "conf"


def everything(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Group -> (name, what it is) in the files' order; presets also say how many jobs they are."""
    return {
        group: [(path.stem, describe(path)) for path in sorted((folder / group).glob("*.yaml"))] for group in GROUPS
    }


def headline(path: Path) -> str:
    """The second comment line of a YAML file; the first is the command that runs it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    return next((line for line in comments if line and not line.startswith(("@package", "knot-runner"))), "")


def describe(path: Path) -> str:
    """What a YAML file is, and a preset's job count."""
    text, said = path.read_text(encoding="utf-8"), headline(path)
    sweep = (yaml.safe_load(text) or {}).get("sweep") if path.parent.name == "experiment" else None
    if sweep:
        jobs = math.prod(len(str(values).split(",")) for values in sweep.values())
        said += f" ({jobs} job{'s' if jobs != 1 else ''})"
    return said
