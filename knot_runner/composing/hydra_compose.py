"""Composes one choice of files with Hydra, including the config's ``hydra`` part; finds cycles in the defaults lists of
the user's own YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from hydra import compose
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.hydra_keys import check_hydra
from knot_runner.composing.interpolations import check_growth
from knot_runner.composing.override_errors import bad_override, missing_config
from knot_runner.composing.own_yaml import YAML_LOADER, defaults_entries, node_pairs, search_path
from knot_runner.util.errors import UserError


def hydra_config(overrides: list[str], config_dir: str | None) -> DictConfig:
    """Compose the config with its ``hydra`` part, checked for unsupported keys; call inside ``initialize_config_dir``.

    Every error is one line that names the key.
    """
    config = _composed("config", overrides, config_dir, hydra=True)
    check_hydra(config.hydra)
    if config_dir or any("$" in override for override in overrides):
        check_growth(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
    return config


def choice_config(choice: str, config_dir: str | None) -> DictConfig:
    """Compose one group's ``choice`` (``model/cnn_8``) alone, in half the time of the whole config; call inside
    ``initialize_config_dir``."""
    config = _composed(choice, [], config_dir, hydra=False)
    if config_dir:
        check_growth(config)
    return config


def _composed(file: str, overrides: list[str], config_dir: str | None, hydra: bool) -> DictConfig:
    search = search_path(config_dir)
    try:
        return compose(file, overrides=[*search, *overrides], return_hydra_config=hydra)
    except MissingConfigException as problem:
        raise UserError(missing_config(str(problem), config_dir)) from None
    except (HydraException, OmegaConfBaseException) as problem:
        cause = f"\n{problem.__cause__}" if str(problem).startswith("Error merging override") else ""
        raise UserError(bad_override(f"{problem}{cause}", overrides, search)) from None
    except RecursionError:
        where = in_a_loop(config_dir)
        raise UserError(f"{where}: its defaults lead back to it" if where else "a value nested too deep") from None


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
