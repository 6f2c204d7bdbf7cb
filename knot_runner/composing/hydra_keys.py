"""Hydra's own keys: a launcher, a sweeper and the size of batches can be set; others stop a command."""

from __future__ import annotations

from omegaconf import DictConfig

from knot_runner.util.errors import UserError, require_extra

#: Launchers of a sweep -> the extra that installs them.
LAUNCHERS = {"basic": "", "joblib": "joblib", "ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}
#: Our launcher, which ``sweeps/launchers.py`` instantiates itself: Hydra looks for plug-ins in installed packages only.
RAY = "knot_runner.sweeps.launchers.RayLauncher"
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
        hint = f"Of Hydra's keys, use {LAUNCHER_GROUP}, {LAUNCHER}.* or {BATCH}"
        raise UserError("not supported", key, hint=hint)


def is_ray(hydra: DictConfig) -> bool:
    """Return whether the ``hydra`` part of a composed config chooses our launcher."""
    return bool(hydra.launcher.get("_target_") == RAY)


def check_hydra(hydra: DictConfig) -> None:
    """Check the ``hydra`` part of a composed config. Raises :class:`UserError`, also if Ray is not installed."""
    size = hydra.sweeper.get("max_batch_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        hint = "Use null to start all jobs at once"
        raise UserError(f"{size!r} is not a positive integer", BATCH, hint=hint)
    if is_ray(hydra):
        require_extra(f"{LAUNCHER_GROUP}=ray", "ray")
