"""Error messages for a mistyped command line: one line naming the key and what would be right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.hydra_keys import LAUNCHERS
from knot_runner.config.strict import by_key
from knot_runner.util.config_yaml import choices, config_folder
from knot_runner.util.errors import closest, nearest, not_installed

#: Groups of the config, each with a folder of choices in ``conf/``.
GROUPS = (
    "task", "partition", "transfer", "model", "encoder", "method", "training", "fleet", "privacy", "hardware",
    "tracker", "experiment",
)  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
_KEY = re.compile(r"[+~]{0,2}[\w$][\w$/.-]*(@[\w$.]*)?")
_FUNCTIONS = ("choice", "range", "glob", "sort", "shuffle", "tag", "int", "float", "str", "bool", "interval")
#: Groups whose keys are never meant where a setting is looked for: what a preset brings, and Hydra's own.
_APART = ("hydra", "report", "sweep")
#: Words of other programs -> the key here.
_USUAL = {
    "algorithm": "method",
    "dataset": "task",
    "gpu": "hardware.device",
    "learning_rate": "training.lr",
    "when": "method=fedsoup",
}
#: Choices of other programs -> the one here.
_USUAL_CHOICES = {"hardware=gpu": "cuda", "method=distil": "kd"}
#: Types that Hydra's errors name -> what is expected.
_TYPES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
#: Keys of ``method`` that are null in most methods -> how they are set.
_PIECES = {
    "method.personalisation": "+method.personalisation.kind=soup sets it",
    "method.distil": "method=feddf sets it, with method.algorithm=NAME that of another method",
    "method.clustering": "method=clustered_fedavg sets it, with method.algorithm=NAME that of another method",
}
#: More places of a name than these are no hint.
_MAX_PLACES = 3
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def message_text(text: str, most: int = 60) -> str:
    """``text`` for a message: one line without invisible characters, at most ``most`` characters."""
    text = _CONTROL.sub("?", text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def unreadable(argument: str) -> str:
    """The message for an argument that is not an override in Hydra's grammar."""
    key, equals, value = argument.partition("=")
    name = message_text(key.strip())
    if not key.strip("+~ "):
        return f"{message_text(argument) or 'an empty argument'}: has no key; key=value is right"
    if not _KEY.fullmatch(key):
        return f"{name}: is not the name of a setting; key=value is right, with dots between the parts of the key"
    if not equals:
        return f"{name}: has no value; {assignment(name) or f'{name}=VALUE'} is right"
    return f"{name}: cannot read {message_text(value)!r}: {_why(name, value)}"


def _why(key: str, value: str) -> str:
    fit = value.isprintable() and len(value) < 40 and not set(value) & set("\"'\\")
    quotes = f"quotes make a text of it, as in '{key}=\"{value if fit else 'a, b'}\"'"
    function = re.match(r"\s*(\w+)\(", value)
    if (unclosed := _unclosed(value)) is not None:
        return f"{unclosed}; {quotes}"
    if function and function.group(1) not in _FUNCTIONS:
        return (
            f"there is no function {message_text(function.group(1))}{nearest(function.group(1), _FUNCTIONS)}; {quotes}"
        )
    if function:
        return f"{function.group(1)} does not take that; choice(a,b), range(0,5) and glob(a*) are right"
    if re.search(r"(^|[,\[({])\s*,|,\s*($|[\])}])", value):
        return f"there is nothing beside one of its commas; a,b lists two values; {quotes}"
    if re.fullmatch(r"-?\d{1000,}", value.strip()):
        return "a number of so many digits; no setting takes one"
    return f"some character of it needs quotes; {quotes}"


def _unclosed(value: str) -> str | None:
    """The first unmatched bracket or quote, or None."""
    waiting: list[str] = []
    quote = ""
    for at, character in enumerate(value):
        if quote:
            quote = "" if character == quote and value[at - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character in _PAIRS:
            waiting.append(_PAIRS[character])
        elif character in _PAIRS.values() and (not waiting or waiting.pop() != character):
            return f"{character} closes nothing"
    if quote:
        return f"{quote} is not closed"
    return f"{waiting[-1]} is missing" if waiting else None


def missing_config(text: str, config_dir: str | None) -> str:
    """The message for an unknown choice such as ``method=sinkhron_e``; ``text``: Hydra's error."""
    wanted = re.search(r"(?:Could not find|Cannot find primary config|In .*?: Could not find) '([^']*)'", text)
    own = re.match(r"In '([^']*)': Could not (?:find|load) '([^']*)'", text)
    if own and config_dir and (path := Path(config_dir) / f"{own.group(1)}.yaml").is_file():
        name = message_text(own.group(2))
        return f"{path}{_line_of(path, own.group(2))}: its defaults name {name!r}, which is not there"
    group, _, name = (wanted.group(1) if wanted else "").rpartition("/")
    if group == "hydra/launcher":
        return _missing_launcher(name)
    if not wanted or not group or "/" in group or not (config_folder() / group).is_dir():
        return message_text(one_line(text), 200)
    usual = _USUAL_CHOICES.get(f"{group}={name}")
    known = nearest(usual or name[:80], [usual] if usual else choices(group, config_dir), listed_by="knot-runner ls")
    return f"{group}={message_text(name)}: there is no such {group}{known}"


def _line_of(path: Path, wanted: str) -> str:
    """``:LINE`` of the defaults entry in the file that names ``wanted`` (a group and a name)."""
    name = wanted.rpartition("/")[2]
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((f":{at}" for at, line in enumerate(lines, 1) if name in line and line.lstrip().startswith("-")), "")


def _missing_launcher(name: str) -> str:
    if name in LAUNCHERS and LAUNCHERS[name]:
        return not_installed(f"hydra/launcher={name}", LAUNCHERS[name])
    return f"hydra/launcher={message_text(name)}: there is no such launcher{nearest(name[:80], LAUNCHERS)}"


def bad_override(text: str, overrides: list[str], search: list[str]) -> str:
    """The message for an override of an unknown key, with the nearest existing one."""
    if appended := re.search(r"Could not append to config. An item is already at '([^']*)'", text):
        return f"+{appended.group(1)}: is there already; {appended.group(1)}=VALUE, without +, is right"
    key = re.search(r"Could not (?:override|append to config|delete from config)[^']*'([^']*)'", text)
    if key is None:
        return _told(text, overrides)
    path = key.group(1).split("=", 1)[0]
    keys = {o: o.split("=", 1)[0].lstrip("+~") for o in overrides}
    groups = [o for o, own in keys.items() if "." not in own and own != path]
    try:
        config: Any = compose("config", overrides=[*search, *groups], return_hydra_config=path.startswith("hydra"))
    except (HydraException, OmegaConfBaseException):  # the YAML itself is invalid
        return _told(text, overrides)
    node, parts = config, path.split(".")
    for depth, part in enumerate(parts):
        prefix = ".".join(parts[:depth])
        if node is None and prefix in _PIECES:
            return f"{path}: {prefix} is null; {_PIECES[prefix]}"
        if prefix and not OmegaConf.is_dict(node):
            return f"{path}: {prefix} has no settings in it; {prefix}=VALUE is right"
        if part not in node and not prefix and len(parts) > 1 and part in GROUPS:
            names = ", ".join(name for name in choices(part) if name != "none")
            return f"{path}: no {part} is chosen; {part}=NAME chooses one ({names})"
        if part not in node:
            return f"{path}: there is no such setting{_hint(config, node, prefix, parts[depth:])}"
        node = node[part]
    return f"{path}: cannot take that value; a key that is new in it needs a +, as in +{path}.KEY=VALUE"


def _hint(config: Any, node: Any, prefix: str, parts: list[str]) -> str:
    """What was meant by ``prefix`` (the keys of ``node``) and ``parts``, of which the first is not in ``node``."""
    if len(parts) > 1 and (mended := _mended(node, parts)):
        places = [f"{prefix}.{mended}".strip(".")]
    else:
        places = _inside(node, prefix, parts[0]) or _elsewhere(config, node, parts[0]) if len(parts) == 1 else []
    if places and len(places) <= _MAX_PLACES:
        return f" (did you mean {' or '.join(map(repr, places))}?)"
    return nearest(parts[0], node) + (f" in {prefix}" if prefix else "")


def _mended(node: Any, parts: list[str]) -> str | None:
    """The key in ``node`` that is spelled like ``parts``, part by part; None if some part is like nothing there."""
    mended = []
    for part in parts:
        close = closest(part, node) if OmegaConf.is_dict(node) else None
        if close is None:
            return None
        mended.append(close)
        node = node[close]
    return ".".join(mended)


def _inside(node: Any, prefix: str, name: str) -> list[str]:
    """Settings ``name`` one level deeper in ``node``, the keys of ``prefix``: ``method.lam`` may be
    ``method.ditto.lam``. None where ``node`` itself has a name that is spelled alike."""
    if not prefix or closest(name, node):
        return []
    return [f"{prefix}.{key}.{name}" for key, own in node.items() if OmegaConf.is_dict(own) and name in own]


def _elsewhere(config: Any, node: Any, name: str) -> list[str]:
    """Settings anywhere that ``name`` may mean: of that name (``lr``: ``training.lr``) or, where ``node`` has none that
    is spelled alike, named by a word of it (``num_clients``: ``partition.clients``)."""
    if name in _USUAL:
        return [_USUAL[name]]
    groups = {key: own for key, own in config.items() if OmegaConf.is_dict(own) and key not in _APART}
    keys = [key for key in config if key not in groups and key not in _APART]
    keys += [f"{group}.{key}" for group, own in groups.items() for key in own]
    by_name = by_key((key.rpartition(".")[2], key) for key in keys)
    if name in by_name or closest(name, node):
        return by_name.get(name, [])
    words = sorted(set(name.split("_")) & set(by_name), key=len)
    meant = words[-1] if words else closest(name, by_name)
    return by_name[meant] if meant else []


def _told(text: str, overrides: list[str]) -> str:
    """The first sentence of Hydra's error, which names the key or a file of the defaults."""
    merging = re.search(r"Error merging override (.*)", text)
    if merging:
        expected = re.search(r"could not be converted to (\w+)", text)
        why = (
            f"expected {_TYPES[expected[1]]}"
            if expected and expected[1] in _TYPES
            else "this key cannot take that value"
        )
        return f"{message_text(merging.group(1))}: {why}"
    return message_text(one_line(text), 200) or f"{message_text(' '.join(overrides))}: cannot be composed"


def one_line(text: str) -> str:
    """``text`` without line breaks."""
    return " ".join(text.split())


def assignment(word: str) -> str:
    """How ``word``, which has no value, is meant: ``femnist`` is ``task=femnist``, ``task`` and ``task:femnist`` are
    ``task=...``; "" if it names nothing that can be chosen."""
    group, _, name = word.partition(":")
    if group in GROUPS:
        return f"{group}={name or 'NAME'}"
    return next((f"{group}={word}" for group in GROUPS if word in choices(group)), "")
