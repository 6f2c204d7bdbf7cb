"""Hydra's own keys: a launcher, a sweeper and the size of batches can be set; others stop a command."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.util.errors import UserError, require_extra

#: Launchers of a sweep -> the extra that installs them.
LAUNCHERS = {"basic": "", "joblib": "joblib", "ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}
#: Class of our launcher that needs an extra; the class itself exists without it.
RAY = "hydra_plugins.knot_runner.RayLauncher"
#: Override that asks for a study.
SWEEPER = "hydra/sweeper=optuna"
LAUNCHER_GROUP, LAUNCHER, BATCH = "hydra/launcher", "hydra.launcher", "hydra.sweeper.max_batch_size"
#: The primary config; ``--config-name=NAME`` sets it.
CONFIG_NAME = "hydra.job.config_name"
SUPPORTED = (LAUNCHER_GROUP, BATCH, CONFIG_NAME)


def is_hydras(key: str) -> bool:
    """Whether ``key`` (dotted, or a group with slashes) is one of Hydra's own."""
    return key.replace("/", ".").split(".")[0] == "hydra"


def check_key(key: str) -> None:
    """Raises :class:`UserError` for an unsupported key of Hydra's (dotted, or a group)."""
    if key not in SUPPORTED and not key.startswith(f"{LAUNCHER}."):
        raise UserError(f"{key}: not supported. Of Hydra's keys, use {LAUNCHER_GROUP}, {LAUNCHER}.* or {BATCH}")


def check_hydra(hydra: DictConfig) -> None:
    """Check the ``hydra`` part of a composed config. Raises :class:`UserError` naming a key with an invalid value."""
    found: dict[str, Any] = OmegaConf.to_container(hydra, resolve=False)  # type: ignore[assignment]
    size = found["sweeper"].get("max_batch_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"{BATCH}: {size!r} is not a positive integer. Use null to start all jobs at once")
    launcher = found["launcher"]
    if launcher.get("_target_") == RAY:
        _check_ray(launcher)


def _check_ray(launcher: dict[str, Any]) -> None:
    """Check the settings of ``hydra/launcher=ray``. Raises :class:`UserError`, also if Ray is not installed."""
    for key, what in (("num_cpus", "cores"), ("num_gpus", "GPUs")):
        value = launcher.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UserError(f"{LAUNCHER}.{key}: {value!r} is not a number of {what} for each job")
    address = launcher.get("address")
    if address is not None and not isinstance(address, str):
        raise UserError(f"{LAUNCHER}.address: {address!r} is not host:port or ray://host:port. Use null for any")
    require_extra(f"{LAUNCHER_GROUP}=ray", "ray")
