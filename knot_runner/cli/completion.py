"""Shell completion: Hydra's plug-ins provide the script and the output format, this module the suggestions.

``eval "$(knot-runner -sc install=bash)"`` installs it; at every TAB the shell asks ``knot-runner -sc query=bash``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.core_plugins.fish_completion import FishCompletion
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf import OmegaConf

from knot_runner.cli.main import VERBS
from knot_runner.composing.catalog import GROUPS, choices
from knot_runner.composing.commands import compose_all, composed_config
from knot_runner.composing.flags import joined_flags
from knot_runner.composing.hydra_keys import LAUNCHER_GROUP, LAUNCHERS
from knot_runner.composing.overrides import config_dir_of
from knot_runner.util.errors import UserError
from knot_runner.util.messages import messages_to

COMMAND = "knot-runner"
SHOWN_FLAGS = (
    "--cfg", "--config-dir", "--help", "--hydra-help", "--info", "--multirun", "--stale=keep", "--stale=rerun",
    "--version",
)  # fmt: skip
#: Verbs whose first argument is a preset.
OF_PRESETS = ("claims", "plot", "report", "reproduce", "table")
#: With this, zsh reads bash's script; the first line is for a zsh whose own start-up files have no completion.
FOR_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit"""
#: Words a shell takes literally: bash expands the suggestions it gets, and these include config values.
PLAIN = re.compile(r"[\w./=,:+~@%-]+")


class _Bash(BashCompletion):
    """Completion for bash and, through bashcompinit, zsh."""

    _get_exec = staticmethod(lambda: COMMAND)

    def uninstall(self) -> None:
        """Print the line that removes our command's completion only; other Hydra programs share the function."""
        print(f"complete -r {COMMAND}")

    def _query(self, config_name: str | None, line: str) -> list[str]:
        return suggestions(line)


class _Fish(FishCompletion):
    _get_exec = staticmethod(lambda: [(COMMAND, "")])
    _get_uninstall_exec = staticmethod(lambda: COMMAND)

    def _query(self, config_name: str | None, line: str) -> list[str]:
        return suggestions(line)


SHELLS: dict[str, type[Any]] = {"bash": _Bash, "fish": _Fish, "zsh": _Bash}


def complete_shell(words: Sequence[str]) -> int:
    """Print the script for ``install=SHELL`` or ``uninstall=SHELL``, or the suggestions for ``query=SHELL``.

    Raises :class:`UserError` for anything else.
    """
    action, _, shell = (words[0] if len(words) == 1 else "").partition("=")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise UserError("--shell-completion: install=SHELL or uninstall=SHELL is right; SHELL: bash, fish or zsh")
    plugin = SHELLS[shell](None)
    if action == "query":
        plugin.query(None)
    elif action == "uninstall":
        plugin.uninstall()
    else:
        if shell == "zsh":
            print(FOR_ZSH)
        plugin.install()
    return 0


def suggestions(line: str) -> list[str]:
    """Sorted completions of the last word of ``line`` (a command line without the command); [] if the line is
    invalid."""
    try:
        words = shlex.split(line)
    except ValueError:  # an unclosed quote
        return []
    word = words.pop() if words and not line.endswith(" ") else ""
    if word.startswith("-"):
        found = list(SHOWN_FLAGS)
    elif words and words[0] in OF_PRESETS and len(words) == 1:
        found = choices("experiment", _config_dir(words))
    elif words[:1] == ["ls"] and "=" not in word:
        found = list(GROUPS)
    else:
        found = _of_overrides(word, [one for one in words if one not in VERBS])
        found += VERBS if not words else ()
    return sorted(one for one in set(found) if one.startswith(word) and PLAIN.fullmatch(one))


def _config_dir(words: Sequence[str]) -> str | None:
    try:
        return config_dir_of([flag for flag in joined_flags(words) if flag.startswith("--config-dir")])
    except UserError:
        return None


def _of_overrides(word: str, before: list[str]) -> list[str]:
    """Completions of an override: group names, choices of a group (for the last of several), file paths, config
    keys."""
    key, equals, value = word.partition("=")
    if equals and key in (*GROUPS, LAUNCHER_GROUP):
        names = LAUNCHERS if key == LAUNCHER_GROUP else choices(key, _config_dir(before))
        listed = value.rpartition(",")
        return [f"{key}={listed[0]}{listed[1]}{name}" for name in names]
    prefix, path = CompletionPlugin._get_filename(word)
    if path is not None:
        return [f"{prefix}{file}" for file in CompletionPlugin.complete_files(path)]
    groups = [f"{name}=" for name in (*GROUPS, LAUNCHER_GROUP)]
    return _keys(word, before) if "." in key or equals else groups + _keys(word, before)


def _keys(word: str, before: list[str]) -> list[str]:
    try:
        with messages_to(lambda text: None):
            _, commands = compose_all(joined_flags(before), first=True)
            config, _ = composed_config(commands[0])
    except UserError:
        return []
    del config["hydra"]
    return CompletionPlugin._get_matches(OmegaConf.create(config), word)
