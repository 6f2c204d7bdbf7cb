"""The settings of a page's jobs: shared and varying ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from knot_runner.report.run_rows import leaves

#: A setting's key, from the top down.
SettingPath = tuple[str, ...]
#: Groups that affect no number of a run: paths, tracker, grid, report.
LEFT_OUT = ("paths", "tracker", "sweep", "report", "fail_fast")
#: Longer lists are shown by their first values and their length.
LONGEST_LIST, SHOWN = 8, 3
LONGEST_TEXT = 80
#: Stands for the value of a setting that a job does not have.
NOT_SET = "(not set)"
#: Of a group with more settings than this only the top levels are shown; the YAML has all.
MAX_SHOWN = 40


@dataclass(frozen=True)
class GroupView:
    """Shown settings of a group as (key, value), and the number of further ones."""

    rows: tuple[tuple[str, str], ...]
    more: int


@dataclass(frozen=True)
class SettingsView:
    """``shared``: group -> settings common to all jobs, without null ones; ``varying``: key -> values in order of first
    occurrence; ``yaml``: all shared settings, line by line."""

    shared: dict[str, GroupView]
    varying: dict[str, tuple[str, ...]]
    yaml: tuple[str, ...]


def view_settings(configs: Sequence[Mapping[str, Any]]) -> SettingsView:
    """The settings of jobs with these composed ``configs`` (at least one job)."""
    flat = [setting_leaves(config) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    everywhere = [key for key in keys if all(key in one for one in flat)]
    common = {key: flat[0][key] for key in everywhere if len({_exact(one[key]) for one in flat}) == 1}
    groups: dict[str, dict[SettingPath, Any]] = defaultdict(dict)
    for key, value in common.items():
        if value is not None:
            groups[key[0] if len(key) > 1 else "run"][key[1:] or key] = value
    varying = {".".join(key): _met(key, flat) for key in keys if key not in common}
    text = yaml.safe_dump(_nested(common), sort_keys=False, allow_unicode=True)
    return SettingsView({name: _shown(group) for name, group in groups.items()}, varying, tuple(text.splitlines()))


def _met(key: SettingPath, flat: Sequence[Mapping[SettingPath, Any]]) -> tuple[str, ...]:
    """Distinct values of a setting in order of first occurrence, then ``NOT_SET`` if some jobs lack it."""
    found = {_exact(one[key]): short_value(one[key]) for one in flat if key in one}
    return (*found.values(), *([] if all(key in one for one in flat) else [NOT_SET]))


def _shown(group: Mapping[SettingPath, Any]) -> GroupView:
    """As many levels of a group as :data:`MAX_SHOWN` allows, the first whatever its size."""
    depth = max(len(key) for key in group)
    while depth > 1 and sum(len(key) <= depth for key in group) > MAX_SHOWN:
        depth -= 1
    rows = tuple((".".join(key), short_value(value)) for key, value in group.items() if len(key) <= depth)
    return GroupView(rows, len(group) - len(rows))


def setting_leaves(config: Mapping[str, Any]) -> dict[SettingPath, Any]:
    """Path of keys -> value, without :data:`LEFT_OUT`; lists and empty mappings are values."""
    return {path: value for path, value in leaves(config) if path[0] not in LEFT_OUT}


def short_value(value: Any) -> str:
    """A setting's value as short text: long lists by their first values and their length."""
    if isinstance(value, list):
        shown = value if len(value) <= LONGEST_LIST else value[:SHOWN]
        rest = f", ... ({len(value)} values)" if len(value) > len(shown) else ""
        return f"[{', '.join(map(short_value, shown))}{rest}]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def _exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _nested(flat: Mapping[SettingPath, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for (*parents, last), value in flat.items():
        node = made
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return made
