"""Error messages for the command line: one line that names the key, with the nearest spelling of an unknown name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.hydra_keys import LAUNCHERS
from knot_runner.config.settings.families import other_owners
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import OTHER_NAMES, UserError, nearest, not_installed, unknown

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


def missing_config(text: str, config_dir: str | None) -> UserError:
    """The error of an unknown choice such as ``method=sinkhron_e``; ``text``: Hydra's error."""
    own = re.match(r"In '([^']*)': Could not (?:find|load) '([^']*)'", text)
    if own and config_dir and (path := Path(config_dir) / f"{own.group(1)}.yaml").is_file():
        return UserError(f"its defaults name {message_text(own.group(2))!r}, which does not exist", str(path))
    wanted = re.search(r"(?:Could not find|Cannot find primary config|In .*?: Could not find) '([^']*)'", text)
    group, _, name = (wanted.group(1) if wanted else "").partition("/")
    if group == "hydra" and name.startswith("launcher/"):
        name = name.removeprefix("launcher/")
        if LAUNCHERS.get(name):
            return not_installed(f"hydra/launcher={name}", LAUNCHERS[name])
        return unknown("hydra/launcher", message_text(name), LAUNCHERS)
    if group not in GROUPS:
        return UserError(one_line(text))
    return unknown(group, message_text(name), choices(group, config_dir), f"knot-runner ls {group}")


def bad_override(text: str, overrides: list[str], search: list[str]) -> str:
    """The message for an override of an unknown key, with the nearest existing one."""
    if appended := re.search(r"(?:An item is already at '|Multiple values for )([\w.]*\w)", text):
        return f"+{appended.group(1)}: exists already. Use {appended.group(1)}=VALUE, without +"
    if merging := re.search(r"Error merging override (.*)", text):
        expected = re.search(r"could not be converted to (\w+)", text)
        kind = _TYPES.get(expected[1]) if expected else None
        why = f"expected {kind}" if kind else "this key cannot take that value"
        return f"{message_text(merging.group(1))}: {why}"
    key = re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text)
    if key is None:
        return one_line(text) or f"{message_text(' '.join(overrides))}: cannot be composed"
    path = key.group(1).split("=", 1)[0]
    groups = [o for o in overrides if "." not in o.split("=", 1)[0] and o.split("=", 1)[0].lstrip("+~") != path]
    try:
        config: Any = compose("config", overrides=[*search, *groups], return_hydra_config=path.startswith("hydra"))
    except (HydraException, OmegaConfBaseException):  # the YAML itself is invalid
        return one_line(text)
    node, parts = config, path.split(".")
    for depth, part in enumerate(parts):
        prefix = ".".join(parts[:depth])
        if prefix and node is None:
            return f"{path}: {prefix} is null. Use {f'{prefix}=NAME' if prefix in GROUPS else f'+{path}=VALUE'}"
        if prefix and not OmegaConf.is_dict(node):
            return f"{path}: {prefix} is a value and has no settings"
        if part not in node:
            if prefix == "method" and (owners := other_owners(part, node.get("algorithm"))):
                return f"{path}: {owners}"
            return f"{path}: there is no such setting{_hint(config, node, prefix, part)}"
        node = node[part]
    return f"{path}: cannot take that value. A key that is new in it needs a +: +{path}.KEY=VALUE"


def _hint(config: Any, node: Any, prefix: str, part: str) -> str:
    """The settings that ``part`` may mean: of that name in a group (``lr``: ``training.lr``), or spelled alike."""
    groups = {key: own for key, own in config.items() if OmegaConf.is_dict(own) and key not in ("report", "sweep")}
    names = (part, *OTHER_NAMES.get(part, "").split())
    places = [f"{group}.{name}" for group, own in groups.items() for name in names if name in own]
    if places and not prefix:
        return f" (did you mean {' or '.join(map(repr, places))}?)"
    return nearest(part, node) + (f" in {prefix}" if prefix else "")
