"""Options of the command line, by argparse: one parser per verb. What is no option is a word, a name or an override."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from knot_runner.util.config_yaml import config_folder
from knot_runner.util.errors import UserError, nearest

#: Hydra's options that stop a command; those of :class:`Parser` are passed through.
UNSUPPORTED = (
    "-cp", "--config-path", "--experimental-rerun", "--hydra-help", "-i", "--info", "-p", "--package", "--resolve",
    "-r", "--run", "-sc", "--shell-completion",
)  # fmt: skip


class _Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap each line by itself, so that examples keep their lines."""
        return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """The options of one verb.

    Args:
        usage: The verb and its words.
        description: What it does, in sentences.
        examples: Commands, without ``knot-runner``.
        composes: Whether it composes jobs and takes Hydra's options.
    """

    def __init__(self, usage: str, description: str, examples: Sequence[str] = (), composes: bool = True) -> None:
        lines = "\n".join(["examples:", *(f"  knot-runner {line}" for line in examples)])
        text = f"knot-runner {usage}".strip()
        super().__init__("knot-runner", text, description, lines, allow_abbrev=False, formatter_class=_Help)
        if composes:
            self.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with YAML of your own")
            self.add_argument("-cn", "--config-name", metavar="NAME", help="the main file, instead of config")
            self.add_argument("-m", "--multirun", action="store_true", help="run a single job as a sweep, too")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; ``words`` holds the other arguments, and ``flags`` Hydra's options as they are typed.

        Raises :class:`UserError` for an unknown option or a wrong value.
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
            return UserError("not supported", name)
        key, name = name.lstrip("-"), name[:40]
        if equals and ("." in key or (config_folder() / key).is_dir()):
            return UserError(f"unknown option. Settings have no dashes: {word[:60].lstrip('-')}", name)
        return UserError(f"unknown option{nearest(name, self._option_string_actions)}", name)

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise argparse's error as a :class:`UserError`."""
        raise UserError(message.removeprefix("argument "))


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line that composes jobs. Raises :class:`UserError`, also for a missing folder."""
    options = Parser("[KEY=VALUE ...]", "").parse(arguments)
    folder = options.config_dir
    if folder is not None and not (folder and Path(folder).is_dir()):
        raise UserError("folder not found", f"--config-dir={folder}")
    return options
