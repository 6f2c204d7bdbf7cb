"""Error messages for the command line: one line that names the key, with the nearest spelling of an unknown name."""

from __future__ import annotations

import re
from pathlib import Path

from hydra.errors import MissingConfigException

from knot_runner.composing.hydra_keys import LAUNCHERS
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError, not_installed, unknown

#: Groups of the config, each with a folder of choices in ``conf/``.
GROUPS = (
    "task", "partition", "transfer", "model", "encoder", "method", "training", "fleet", "privacy", "hardware",
    "tracker", "experiment",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
#: Types that Hydra's errors name -> what is expected.
_TYPES = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false"}


def message_text(text: str, most: int = 60) -> str:
    """``text`` for a message: one line without invisible characters, at most ``most`` characters."""
    text = _CONTROL.sub("?", text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: str) -> str:
    """``text`` without line breaks."""
    return message_text(" ".join(text.split()), 200)


def missing_config(problem: MissingConfigException, config_dir: str | None) -> UserError:
    """The error of an unknown choice such as ``method=sinkhron_e``."""
    text, wanted = str(problem), problem.missing_cfg_file or ""
    own = re.match(r"In '([^']*)': Could not (?:find|load)", text)
    if own and config_dir and (path := Path(config_dir) / f"{own.group(1)}.yaml").is_file():
        return UserError(f"its defaults name {message_text(wanted)!r}, which does not exist", path)
    launcher = wanted.removeprefix("hydra/launcher/")
    if launcher != wanted:
        if LAUNCHERS.get(launcher):
            return not_installed(f"hydra/launcher={launcher}", LAUNCHERS[launcher])
        return unknown("hydra/launcher", message_text(launcher), LAUNCHERS)
    group, _, name = wanted.partition("/")
    if group not in GROUPS:
        return UserError(one_line(text))
    return unknown(group, message_text(name), choices(group, config_dir), f"knot-runner ls {group}")


def bad_override(text: str, overrides: list[str]) -> str:
    """The message for an override that Hydra refuses; ``text``: Hydra's error."""
    if appended := re.search(r"(?:An item is already at '|Multiple values for )([\w.]*\w)", text):
        return f"+{appended.group(1)}: exists already. Use {appended.group(1)}=VALUE, without +"
    if merging := re.search(r"Error merging override (.*)", text):
        expected = re.search(r"could not be converted to (\w+)", text)
        kind = _TYPES.get(expected[1]) if expected else None
        why = f"expected {kind}" if kind else "this key cannot take that value"
        return f"{message_text(merging.group(1))}: {why}"
    if key := re.search(r"Could not (override|delete from config)[^']*'([^']*)'", text):
        name = message_text(key.group(2).split("=", 1)[0])
        hint = f". Use +{name}@KEY=NAME" if name in GROUPS else ""
        return f"{name}: there is nothing to {'replace' if key.group(1) == 'override' else 'delete'}{hint}"
    return one_line(text) or f"{message_text(' '.join(overrides))}: cannot be composed"
