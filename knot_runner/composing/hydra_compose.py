"""Composes one choice of files with Hydra, including the config's ``hydra`` part."""

from __future__ import annotations

from hydra import compose
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.hydra_keys import check_hydra
from knot_runner.composing.interpolations import check_growth
from knot_runner.composing.override_errors import bad_override, missing_config
from knot_runner.composing.own_yaml import search_path
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
        from knot_runner.composing.defaults_loops import in_a_loop

        where = in_a_loop(config_dir)
        raise UserError(f"{where}: its defaults lead back to it" if where else "a value nested too deep") from None
