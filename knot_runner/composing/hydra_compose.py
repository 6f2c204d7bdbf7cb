"""Composition of YAML files with Hydra, and parsing of command-line options."""

from __future__ import annotations

import argparse
import os
import textwrap
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from knot_runner.composing.overrides import (
    CONFIG_NAME,
    bad_override,
    check_hydra,
    message_text,
    missing_config,
    one_line,
    search_path,
)
from knot_runner.util.config_yaml import Config, config_folder
from knot_runner.util.errors import UserError, first_line, nearest

#: Arguments that select Hydra's current defaults. Hydra 1.3 needs ``version_base=None``, which Hydra 1.4 deprecates.
CURRENT_DEFAULTS: Config = {}
if hydra.__version__.startswith("1.3."):
    CURRENT_DEFAULTS["version_base"] = None
#: Hydra's state is global, so threads compose one after another.
_LOCK = threading.Lock()


def composing(folder: Path) -> AbstractContextManager[None]:
    """Return a context manager. Inside its block, Hydra reads the YAML files in ``folder``."""
    return initialize_config_dir(str(folder), **CURRENT_DEFAULTS)


def hydra_config(overrides: list[str], config_dir: str | None) -> DictConfig:
    """Compose YAML files and ``overrides`` into a config. The part ``hydra`` of the config has Hydra's own settings.

    The environment variable ``KNOT_HARDWARE`` selects the hardware if it is set and ``overrides`` select no hardware.

    Raises:
        UserError: The config cannot be composed.
    """
    hardware = os.environ.get("KNOT_HARDWARE")
    if hardware and not any(word.startswith("hardware=") for word in overrides):
        overrides = [f"hardware={hardware}", *overrides]
    folder = config_folder()
    name = "config"
    others = []
    for word in overrides:
        if word.startswith(f"{CONFIG_NAME}="):
            folder = Path(config_dir or folder).resolve()
            name = word.partition("=")[2]
        else:
            others.append(word)
    if not (folder / f"{name}.yaml").is_file():
        raise UserError(f"file not found: {folder / message_text(name)}.yaml", f"--config-name={message_text(name)}")
    config = _composed(folder, name, others, config_dir, hydra=True)
    check_hydra(config.hydra)
    return config


def choice_config(choice: str, config_dir: str | None) -> DictConfig:
    """Compose only the YAML file of one choice, such as ``model/cnn_8``."""
    # Composing all groups would take three times as long.
    return _composed(config_folder(), choice, [], config_dir, hydra=False)


def _composed(folder: Path, file: str, overrides: list[str], config_dir: str | None, hydra: bool) -> DictConfig:
    """Compose ``file``, which Hydra searches in ``folder`` first.

    ``folder`` is ``conf/`` or ``config_dir``. Files that ``folder`` lacks are taken from the other one of these two.
    """
    other = config_dir
    if folder != config_folder():
        other = str(config_folder())
    try:
        with _LOCK, composing(folder):
            return compose(file, overrides=[*search_path(other), *overrides], return_hydra_config=hydra)
    except MissingConfigException as problem:
        raise missing_config(problem, config_dir) from None
    except RecursionError:
        raise UserError("a defaults list includes its own file, or a value is nested too deeply") from None
    except (HydraException, OmegaConfBaseException, YAMLError) as problem:
        text = str(problem)
        if text.startswith("Error merging override"):
            text = f"{text}\n{problem.__cause__}"
        raise UserError(bad_override(text, overrides)) from None


def plain_content(config: DictConfig, resolve: bool = False) -> Config:
    """Return ``config`` as plain dicts, lists and scalars.

    ``resolve``: whether to resolve interpolations ``${...}``.
    """
    content: Any = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    return content or {}


def plain_config(config: DictConfig) -> Config:
    """Return ``config`` as plain dicts, lists and scalars, with all interpolations ``${...}`` resolved.

    Raises:
        UserError: An interpolation cannot be resolved.
    """
    try:
        return plain_content(config, resolve=True)
    except RecursionError:
        raise UserError("an interpolation ${...} refers to itself") from None
    except OmegaConfBaseException as problem:
        key = getattr(problem, "full_key", "")
        if not key:
            raise UserError(one_line(str(problem))) from None
        text = first_line(problem).rpartition("raised while resolving interpolation: ")[2].strip('"')
        raise UserError(message_text(text, 200), key) from None


# ------------------------------------------------------------------------------------------------------------- flags


#: Options of Hydra that we do not support. The supported options are those of :class:`Parser`.
UNSUPPORTED = (
    "-cp", "--config-path", "--experimental-rerun", "--hydra-help", "-i", "--info", "-p", "--package", "--resolve",
    "-r", "--run", "-sc", "--shell-completion",
)  # fmt: skip


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each line separately, so that examples keep their lines."""
        return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Argument parser of one verb of the command line.

    Args:
        usage: The verb and its arguments.
        description: What the verb does, in sentences.
        examples: Commands, without ``knot-runner``.
        composes: Whether the verb composes jobs. If true, the parser accepts Hydra's options.
    """

    def __init__(self, usage: str, description: str, examples: Sequence[str] = (), composes: bool = True) -> None:
        lines = "\n".join(["examples:", *(f"  knot-runner {line}" for line in examples)])
        text = f"knot-runner {usage}".strip()
        super().__init__("knot-runner", text, description, lines, allow_abbrev=False, formatter_class=_Help)
        if composes:
            self.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with your own YAML files")
            self.add_argument(
                "-cn", "--config-name", metavar="NAME", help="name of the main YAML file (default: config)"
            )
            self.add_argument("-m", "--multirun", action="store_true", help="run even a single job as a sweep")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse ``arguments`` and return the options.

        Besides the options, the returned object has two lists. ``words`` holds the arguments that are not options, such
        as overrides. ``flags`` holds the given options of Hydra in their long form, such as ``--multirun``.

        Raises:
            UserError: An option is unknown, or has a wrong value.
        """
        options, options.words = self.parse_known_args(arguments)
        for word in options.words:
            if word.startswith("-"):
                raise self._unknown(word)
        options.flags = []
        for name, option in (("config_dir", "--config-dir"), ("config_name", "--config-name")):
            if value := getattr(options, name, None):
                options.flags.append(f"{option}={value}")
        if getattr(options, "multirun", False):
            options.flags.append("--multirun")
        return options

    def _unknown(self, word: str) -> UserError:
        name, equals, _ = word.partition("=")
        if name in UNSUPPORTED:
            return UserError("knot-runner does not have this option of Hydra. See 'knot-runner --help'", name)
        key = name.lstrip("-")
        name = name[:40]
        if equals and ("." in key or (config_folder() / key).is_dir()):
            return UserError(f"unknown option. Write a setting without dashes: {word[:60].lstrip('-')}", name)
        return UserError(f"unknown option{nearest(name, self._option_string_actions)}", name)

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise :class:`UserError` for an error of argparse."""
        raise UserError(message.removeprefix("argument "))


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a verb that composes jobs. Return the options as :meth:`Parser.parse` does.

    Raises:
        UserError: An option is wrong, or the folder of ``--config-dir`` does not exist.
    """
    options = Parser("[KEY=VALUE ...]", "").parse(arguments)
    folder = options.config_dir
    if folder is not None and not (folder and Path(folder).is_dir()):
        raise UserError("folder not found", f"--config-dir={folder}")
    return options
