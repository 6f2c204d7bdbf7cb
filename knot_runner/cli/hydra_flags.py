"""Hydra's flags that print instead of running: ``--cfg``, ``--info``, ``--hydra-help``, ``--shell-completion``.

Hydra's plug-ins provide the script of a completion and the output format, this module the suggestions:
``eval "$(knot-runner -sc install=bash)"`` installs it; at every TAB the shell asks ``knot-runner -sc query=bash``.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Sequence
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.core_plugins.fish_completion import FishCompletion
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf import Container, OmegaConf

from knot_runner.cli.main import VERBS
from knot_runner.composing.commands import compose_all, composed_config
from knot_runner.composing.flags import INFO, joined_flags
from knot_runner.composing.hydra_keys import LAUNCHER_GROUP, LAUNCHERS
from knot_runner.composing.override_errors import GROUPS, message_text
from knot_runner.composing.overrides import config_dir_of
from knot_runner.composing.own_yaml import search_path
from knot_runner.util.config_yaml import choices, config_folder
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER, messages_to

SHOWING = ("--cfg", "--info", "--package", "--resolve")
CONFIG_PARTS = ("job", "hydra", "all")
HYDRA_HELP = """\
knot-runner composes its runs with Hydra. These of Hydra's flags are honoured:

  -c, --cfg job|hydra|all  the composed config as YAML; of a grid, its first job
  -p, --package KEY        with --cfg: this part of it alone
  --resolve                with --cfg: interpolations replaced
  -i, --info [WHAT]        how Hydra composes it: all, config, defaults,
                           defaults-tree, plugins, searchpath
  -m, --multirun           a grid; values with commas are one without it, too
  -cd, --config-dir DIR    adds a folder of YAML of your own
  -sc, --shell-completion install=SHELL
                           completion; bash, zsh: eval "$(knot-runner -sc ...)",
                           fish: knot-runner -sc install=fish | source
  --version, -h, --help    of knot-runner

Overrides are Hydra's: key=value, +key=value, ~key, a,b, range(0,5),
choice(a,b), glob(fed*). +experiment=NAME is experiment=NAME, ~tracker is
tracker=none.

Of Hydra's own keys:

  hydra/launcher=basic, joblib, ray, submitit_local, submitit_slurm
  hydra.launcher.*, hydra.sweeper.max_batch_size
  hydra/sweeper=optuna, hydra.sweeper.n_trials, hydra.sweeper.n_jobs,
  hydra.sweeper.sampler.seed

Any other flag or key of Hydra's is refused, with what to type instead."""


def shows(arguments: Sequence[str]) -> bool:
    """Whether a command line (with joined flags) has one of these flags."""
    return any(argument.partition("=")[0] in SHOWING for argument in arguments)


def show_composed(arguments: Sequence[str]) -> int:
    """Print the output of ``--cfg`` or ``--info``, after the usual checks of the command line; returns the exit
    code."""
    parts = [argument.partition("=") for argument in arguments]
    given = {name: value for name, _, value in parts if name in SHOWING}
    own = [argument for argument in arguments if argument.partition("=")[0] not in SHOWING]
    _check(given)
    _, commands = compose_all(own, first=True)
    config_dir = config_dir_of([flag for flag in commands[0].arguments if flag.startswith("-")])
    jobs = sum(command.grid.size for command in commands)
    if jobs > 1:
        LOGGER.info("the first of %d jobs", jobs)
    composed, overrides = composed_config(commands[0])
    if "--info" in given:
        _print_info(given["--info"] or "all", [*search_path(config_dir), *overrides])
        return 0
    part = given["--cfg"]
    config = OmegaConf.create(composed)
    if "--resolve" in given:
        OmegaConf.resolve(config)
        config = OmegaConf.create({"hydra": config["hydra"], **commands[0].jobs[0].config})
    if part == "hydra":
        config = OmegaConf.masked_copy(config, ["hydra"])
    elif part == "job":
        del config["hydra"]
    _print_part(config, given.get("--package", "_global_"))
    return 0


def _check(given: dict[str, str]) -> None:
    """Raises :class:`UserError` for an invalid value of such a flag and for a flag that does not go with another."""
    part, info = given.get("--cfg"), given.get("--info")
    if part is not None and info is not None:
        raise UserError("--cfg and --info: one of them is right")
    if part is not None and part not in CONFIG_PARTS:
        raise UserError(f"--cfg: {message_text(part) or 'without a value'}: --cfg job, hydra or all is right")
    if info and info not in INFO:
        raise UserError(f"--info: there is no {message_text(info)!r}{nearest(info[:40], INFO)}")
    for name in ("--package", "--resolve"):
        if name in given and part is None:
            raise UserError(f"{name}: goes with --cfg, as in --cfg job {name}{' KEY' * (name == '--package')}")
    if "--package" in given and not given["--package"]:
        raise UserError("--package: without a value; --package KEY is right")


def _print_part(config: Container, key: str) -> None:
    """Print the part of the config under ``key``. Raises :class:`UserError` if there is no such key."""
    part = config if key == "_global_" else OmegaConf.select(config, key)
    if part is None:
        raise UserError(f"--package: the composed config has nothing under {message_text(key)!r}")
    if not OmegaConf.is_config(part):
        print(part)
        return
    head = "" if key == "_global_" else f"# @package {key}\n"
    print(head + OmegaConf.to_yaml(part), end="")


def _print_info(what: str, overrides: list[str]) -> None:
    """Print Hydra's own information. Hydra prints through the root logger, which is restored afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level
    root.handlers = []
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            GlobalHydra.instance().hydra.show_info(what, config_name="config", overrides=overrides)
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])


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
