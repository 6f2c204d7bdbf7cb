"""The listings of ``ls``, read from the heads of the YAML files only, so that it answers at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from knot_runner.util.messages import counted

PACKAGE = Path(__file__).resolve().parents[1]
GROUPS = (
    "task", "partition", "transfer", "model", "encoder", "method", "training", "fleet", "privacy", "hardware",
    "tracker", "experiment",
)  # fmt: skip


def config_folder() -> Path:
    """``conf/`` of the checkout, or the copy in the wheel."""
    in_checkout = PACKAGE.parent / "conf"
    return in_checkout if (in_checkout / "config.yaml").is_file() else PACKAGE / "conf"


def choices(group: str, config_dir: str | Path | None = None) -> list[str]:
    """The choices of ``group``, ours and those in the user's ``config_dir``."""
    return [path.stem for path in yaml_files(group, config_dir)]


def yaml_files(group: str, config_dir: str | Path | None = None) -> list[Path]:
    """One YAML file per choice of ``group``, sorted. If both folders have the same name, Hydra takes ours."""
    folders = [Path(folder) for folder in (config_dir, config_folder()) if folder]
    found = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    return [found[name] for name in sorted(found)]


def assignment(word: str) -> str:
    """How ``word``, which has no value, is meant: ``femnist`` is ``task=femnist``, ``task`` and ``task:femnist`` are
    ``task=...``; "" if it names nothing that can be chosen."""
    group, _, name = word.partition(":")
    if group in GROUPS:
        return f"{group}={name or 'NAME'}"
    return next((f"{group}={word}" for group in GROUPS if word in choices(group)), "")


def hidden(config_dir: str | None) -> list[Path]:
    """Files of ``config_dir`` that are shadowed by ours of the same name."""
    return [path for g in GROUPS for path in (Path(config_dir) / g).glob("*.yaml")
            if (config_folder() / g / path.name).is_file()] if config_dir else []  # fmt: skip


def headline(path: Path) -> str:
    """The second comment line of a YAML file (the first is the command that runs it)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.lstrip("# ").rstrip() for line in lines if line.startswith("#")]
    return next((line for line in comments if line and not line.startswith(("@package", "knot-runner"))), "")


def algorithm_of(path: Path, seen: tuple[Path, ...] = ()) -> str:
    """``algorithm`` of a method's YAML file or of those in its defaults; "" if none sets it or the file is not a
    method's. ``seen``: files already visited through defaults, which are not read again."""
    try:
        content = _loaded(path, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    if "algorithm" in content:
        return str(content["algorithm"])
    defaults = content.get("defaults")
    for entry in reversed(defaults if isinstance(defaults, list) else []):
        name = str(entry).partition("@")[0]
        folder = config_folder() if name.startswith("/") else path.parent
        other = folder / f"{name.lstrip('/')}.yaml"
        if other not in (*seen, path) and (found := algorithm_of(other, (*seen, path))):
            return found
    return ""


def _loaded(path: Path, text: str) -> Any:
    """The content of a YAML file. Ours are parsed by libyaml if PyYAML has it, ten times as fast; a user's never, since
    deeply nested brackets crash the process there."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if path.is_relative_to(config_folder()) else yaml.SafeLoader
    reader = loader(text)
    try:
        return reader.get_single_data()
    finally:
        reader.dispose()


def describe_yaml(path: Path) -> str:
    """Description of a YAML file, for a preset with its number of jobs."""
    try:
        text, said = path.read_text(encoding="utf-8"), headline(path)
        whole = _loaded(path, text) if path.parent.name == "experiment" else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return "cannot be read: a run says where it is wrong"
    sweep = whole.get("sweep") if isinstance(whole, dict) else None
    if isinstance(sweep, dict):
        jobs = math.prod(len(str(values).split(",")) for values in sweep.values())
        said += f" ({counted(jobs, 'job')})"
    return said
