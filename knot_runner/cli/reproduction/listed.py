"""``conf/reproduce.yaml``: presets with measured times and the further overrides of their commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from knot_runner.composing.catalog import choices, config_folder
from knot_runner.composing.override_errors import message_text
from knot_runner.config.strict import AtMost, build, require
from knot_runner.util.config_yaml import read_config
from knot_runner.util.errors import UserError, nearest

LIST_FILE = "reproduce.yaml"


@dataclass(frozen=True)
class ListedPreset:
    """A preset and the further overrides ``words`` of its command; its ``runs`` took ``minutes`` (None: not
    measured)."""

    preset: str
    words: list[str] = field(default_factory=list)
    runs: Annotated[int, AtMost(10**6)] = 1
    minutes: Annotated[float, AtMost(10**6)] | None = None

    def __post_init__(self) -> None:
        require(self.runs >= 1, "runs", f"{self.runs} is not at least 1")
        require(self.minutes is None or self.minutes > 0, "minutes", f"{self.minutes} is not above 0")
        right = all("=" in word and not word.startswith("-") for word in self.words)
        require(right, "words", f"{self.words} are not all key=value")


@dataclass(frozen=True)
class PresetList:
    """The content of the file."""

    presets: list[ListedPreset]


def listed_presets(config_dir: str | None = None) -> list[ListedPreset]:
    """The presets of ``reproduce.yaml``, from ``config_dir`` if it has that file.

    Raises :class:`UserError` naming the file and the invalid key.
    """
    own = Path(config_dir) / LIST_FILE if config_dir else None
    path = own if own is not None and own.exists() else config_folder() / LIST_FILE
    try:
        listed = build(PresetList, read_config(path), "").presets
    except (ValueError, OSError) as problem:
        raise UserError(f"{path}: cannot be read: {problem}") from None
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None
    known = choices("experiment", config_dir)
    for one in listed:
        if one.preset not in known:
            raise UserError(f"{path}: there is no preset {one.preset!r}{nearest(one.preset, known)}")
    return listed


def check_typed(overrides: list[str], reads: bool) -> None:
    """Raises :class:`UserError` for overrides that would stop every preset, before any is composed. ``reads``: whether
    data are read, or only the table of what is there is asked for."""
    for word in overrides:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "experiment":
            name = message_text(value) or "PRESET"
            right = f"reproduce takes the name alone, as in 'knot-runner reproduce {name}'"
            raise UserError(f"{message_text(word)}: {right}")
        folder = value.strip("'\"") if key == "paths.data" and reads and "$" not in value else "null"
        if folder not in ("", "null") and not Path(folder).expanduser().is_dir():
            raise UserError(f"{key}: {message_text(folder)} is not a folder; 'knot-runner data' shows what is needed")


def chosen_presets(names: list[str], config_dir: str | None) -> list[ListedPreset]:
    """The presets ``names`` as listed, or without a measured time if unlisted; all listed presets if ``names`` is
    empty.

    Raises :class:`UserError` for an unknown preset.
    """
    listed = listed_presets(config_dir)
    if not names:
        return listed
    known = choices("experiment", config_dir)
    for name in names:
        if name not in known:
            hint = nearest(name, known, listed_by="knot-runner ls")
            raise UserError(f"{message_text(name)}: there is no such preset{hint}")
    by_name = {one.preset: one for one in listed}
    return [by_name.get(name, ListedPreset(name)) for name in dict.fromkeys(names)]
