"""Finds cycles in the defaults lists of the user's own YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from knot_runner.composing.own_yaml import YAML_LOADER, defaults_entries, node_pairs


def in_a_loop(config_dir: str | None) -> str | None:
    """``FILE:LINE`` of a defaults list in ``config_dir`` that leads back to its own file, or None."""
    folder = Path(config_dir or ".").resolve()
    links: dict[str, list[tuple[str, int]]] = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]) if config_dir else []:
        name = path.relative_to(folder).with_suffix("").as_posix()
        links[name] = list(_links(path, name.rpartition("/")[0]))
    for name in links:
        for target, line in links[name]:
            if name in _reached(target, links):
                return f"{folder / name}.yaml:{line}"
    return None


def _links(path: Path, group: str) -> Iterator[tuple[str, int]]:
    """Yield (``group/name``, line) of each entry in a file's defaults."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=YAML_LOADER)
    except (yaml.YAMLError, OSError, ValueError, RecursionError):
        return
    for key, value in node_pairs(root) if isinstance(root, yaml.MappingNode) else []:
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            for entry, own, _, name in defaults_entries(value):
                full = f"{own}/{name}" if name else own
                relative = group and not full.startswith("/")
                yield f"{group}/{full}" if relative else full.lstrip("/"), entry.start_mark.line + 1


def _reached(start: str, links: dict[str, list[tuple[str, int]]]) -> set[str]:
    found, left = set(), [start]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [target for target, _ in links.get(name, [])]
    return found
