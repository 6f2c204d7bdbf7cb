"""What Hydra says of a mistyped command line, in one line that names the key and what would be right."""

from __future__ import annotations

import re
from typing import Any

from hydra import compose
from hydra.errors import HydraException
from omegaconf import OmegaConf

from knot_runner.errors import nearest
from knot_runner.listing import config_folder

#: Launchers that a sweep can have -> the extra that installs them.
LAUNCHERS = {"basic": "", "fused": "", "joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}


def missing_config(text: str) -> str:
    """``method=sinkhron_e`` and the like."""
    wanted = re.search(r"(?:Could not find|Cannot find primary config|In .*?: Could not find) '([^']*)'", text)
    group, _, name = (wanted.group(1) if wanted else "").rpartition("/")
    if group == "hydra/launcher":
        return _missing_launcher(name)
    folder = config_folder() / group
    if not wanted or not folder.is_dir():
        return one_line(text)
    return f"{group}={name}: there is no such {group}{nearest(name, [p.stem for p in folder.glob('*.yaml')])}"


def _missing_launcher(name: str) -> str:
    if name in LAUNCHERS and LAUNCHERS[name]:
        extra = LAUNCHERS[name]
        return f"hydra/launcher={name}: its package is not installed; pip install 'knot_runner[{extra}]' adds it"
    return f"hydra/launcher={name}: there is no such launcher{nearest(name, LAUNCHERS)}"


def bad_override(text: str, overrides: list[str], search: list[str]) -> str:
    """One line for an override of a key that is not there, with the nearest one that is."""
    key = re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text)
    if key is None:
        return one_line(text)
    path = key.group(1).split("=", 1)[0]
    groups = [o for o in overrides if "." not in o.split("=", 1)[0] and o.split("=", 1)[0] != path]
    try:
        node: Any = compose("config", overrides=[*search, *groups], return_hydra_config=path.startswith("hydra"))
    except HydraException:  # the YAML itself is at fault
        return one_line(text)
    parts = path.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or part not in node:
            known = list(node) if OmegaConf.is_dict(node) else []
            prefix = ".".join(parts[:depth])
            return f"{path}: there is no such setting{nearest(part, known)}" + (f" in {prefix}" if prefix else "")
        node = node[part]
    return f"{path}: cannot take that value; a key that is new in it needs a +, as in +{path}.KEY=VALUE"


def one_line(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())
