"""Normalises flags and overrides, as Hydra users type them, to the form that the program reads.

Short flags and flags with a separate value become ``--name=value``. Hydra's flags without a meaning here are refused by
name.
"""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.util.errors import UserError

#: Hydra's short flags.
LONG = {
    "-c": "--cfg", "-cd": "--config-dir", "-cn": "--config-name", "-cp": "--config-path", "-i": "--info",
    "-p": "--package", "-r": "--run", "-sc": "--shell-completion",
}  # fmt: skip
#: Flags whose value may be the next word.
WITH_VALUE = ("--cfg", "--config-dir", "--package", "--shell-completion")
#: Values of ``--info``.
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
#: Hydra's flags that are not supported -> what to use instead.
NOT_HONOURED = {
    "--config-name": "the one config is conf/config.yaml; experiment=NAME chooses a preset, --config-dir=DIR adds YAML",
    "--config-path": "the configs are those of conf/; --config-dir=DIR adds a folder of YAML",
    "--experimental-rerun": "the same command again goes on; --stale=rerun makes anew what other code made",
    "--run": "a command without commas in its values is one run",
}


def joined_flags(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with each of Hydra's flags in its long form, its value after ``=``.

    Raises :class:`UserError` for an unsupported flag, naming what to type instead.
    """
    found: list[str] = []
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        name = LONG.get(name, name)
        if name in NOT_HONOURED:
            raise UserError(f"{name}: is not honoured; {NOT_HONOURED[name]}")
        if not equals and words and (name in WITH_VALUE or (name == "--info" and words[0] in INFO)):
            equals, value = "=", words.pop(0)
        found.append(f"{name}{equals}{value}")
    return found


def usual_overrides(words: Sequence[str]) -> list[str]:
    """``words`` with ``experiment=NAME`` for ``+experiment=NAME``, and ``tracker=none`` for ``~tracker``."""
    return ["tracker=none" if word == "~tracker" else _added_preset(word) for word in words]


def _added_preset(word: str) -> str:
    bare = word.lstrip("+")
    return bare if bare.startswith("experiment=") else word
