"""Which of Hydra's own keys are supported, and what to use instead of the others.

Hydra would instantiate ``hydra.callbacks`` and configure logging from any YAML: both run code that a file names.
Unsupported keys are therefore refused on the command line, in the user's YAML and again in the composed config
(:func:`check_hydra`), before Hydra acts on them.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from knot_runner.util.errors import UserError, require_extra

#: The config key that names a class to instantiate.
TARGET = "_target_"
#: Launchers of a sweep -> the extra that installs them.
LAUNCHERS = {
    "basic": "",
    "joblib": "joblib",
    "ray": "ray",
    "submitit_local": "submitit",
    "submitit_slurm": "submitit",
}
#: Class of our launcher that needs an extra; the class itself exists without it.
RAY = "hydra_plugins.knot_runner.RayLauncher"
#: Classes of these launchers.
CLASSES = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    RAY,
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
)
#: Override that asks for a study.
SWEEPER = "hydra/sweeper=optuna"
LAUNCHER_GROUP, LAUNCHER, BATCH = "hydra/launcher", "hydra.launcher", "hydra.sweeper.max_batch_size"
#: Prefix of a key -> what to use instead.
INSTEAD = {
    "hydra.run": "paths.out=DIR says where runs are written",
    "hydra.sweep": "paths.out=DIR says where runs are written",
    "hydra.output_subdir": "every run's folder has its config.yaml",
    "hydra.searchpath": "--config-dir=DIR adds a folder of YAML",
    "hydra.callbacks": "plugins=[FILE.py] adds code of your own",
    "hydra.mode": "-m, or values with commas, make a grid",
    "hydra.verbose": "every run's folder has its log.txt",
    "hydra.job_logging": "every run's folder has its log.txt",
    "hydra.hydra_logging": "every run's folder has its log.txt",
    "hydra.job": "jobs run in the folder and the environment of the command",
    "hydra.sweeper": "runs take hydra/sweeper=optuna with hydra.sweeper.n_trials, hydra.sweeper.n_jobs and "
    f"hydra.sweeper.sampler.seed, and grids {BATCH}",
}
#: Default values of Hydra's keys in the composed config.
DEFAULTS: dict[str, Any] = {
    "run": {"dir": "${paths.out}"},
    "sweep": {"dir": "${paths.out}/.sweep", "subdir": "."},
    "hydra_logging": {"version": 1, "root": None, "disable_existing_loggers": False},
    "job_logging": {"version": 1, "root": None, "disable_existing_loggers": False},
    "mode": None,
    "callbacks": {},
    "output_subdir": None,
    "verbose": False,
    "env": {},
}
JOB_DEFAULTS: dict[str, Any] = {"chdir": None, "env_set": {}, "env_copy": []}


def is_hydras(key: str) -> bool:
    """Whether ``key`` (dotted, or a group with slashes) is one of Hydra's own."""
    return key.replace("/", ".").split(".")[0] == "hydra"


def check_key(key: str) -> None:
    """Raises :class:`UserError` for an unsupported key of Hydra's (dotted, or a group), naming what to use instead."""
    if not key.endswith(f".{TARGET}") and (key in (LAUNCHER_GROUP, BATCH) or key.startswith(f"{LAUNCHER}.")):
        return
    dotted = key.replace("/", ".")
    instead = next((text for start, text in INSTEAD.items() if f"{dotted}.".startswith(f"{start}.")), None)
    honoured = f"of Hydra's keys {LAUNCHER_GROUP}, {LAUNCHER}.* and {BATCH} are"
    raise UserError(f"{key}: is not honoured; {instead or honoured}")


def check_launcher_class(name: Any, key: str = f"{LAUNCHER}.{TARGET}") -> None:
    """Raises :class:`UserError`, naming ``key``, unless ``name`` is the class of one of :data:`LAUNCHERS`."""
    if name not in CLASSES:
        raise UserError(f"{key}: {name!r} is not one of the launchers {', '.join(LAUNCHERS)}")


def check_hydra(hydra: DictConfig) -> None:
    """Check the ``hydra`` part of a composed config. Raises :class:`UserError` naming an unsupported key."""
    found: dict[str, Any] = OmegaConf.to_container(hydra, resolve=False)  # type: ignore[assignment]
    for key, value in DEFAULTS.items():
        if found[key] != value:
            check_key(f"hydra.{key}")
    for key, value in JOB_DEFAULTS.items():
        if found["job"][key] != value:
            check_key(f"hydra.job.{key}")
    launcher, sweeper = found["launcher"], found["sweeper"]
    check_launcher_class(launcher.get(TARGET) if isinstance(launcher, dict) else launcher)
    for key, value in launcher.items():
        if names_a_class(value):
            raise UserError(f"{LAUNCHER}.{key}: has a {TARGET}; plain values are right")
    if not isinstance(sweeper, dict) or set(sweeper) != {"max_batch_size"}:
        raise UserError("hydra/sweeper: knot-runner's own, missing, expands grids and resumes; without it is right")
    size, together = sweeper["max_batch_size"], launcher.get("together", 0)
    if size is not None and not _at_least(size, 1):
        raise UserError(f"{BATCH}: {size!r} is not a whole number above 0, or null for all jobs")
    if not _at_least(together, 0):
        raise UserError(f"{LAUNCHER}.together: {together!r} is not a number of jobs; 0 chooses by the hardware")
    if launcher.get(TARGET) == RAY:
        _check_ray(launcher)


def _check_ray(launcher: dict[str, Any]) -> None:
    """Check the settings of ``hydra/launcher=ray``. Raises :class:`UserError`, also if Ray is not installed."""
    for key, what in (("num_cpus", "cores"), ("num_gpus", "GPUs")):
        value = launcher.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UserError(f"{LAUNCHER}.{key}: {value!r} is not a number of {what} for each job")
    address = launcher.get("address")
    if address is not None and not isinstance(address, str):
        raise UserError(f"{LAUNCHER}.address: {address!r} is not host:port or ray://host:port; null finds a cluster")
    require_extra(f"{LAUNCHER_GROUP}=ray", "ray")


def names_a_class(value: Any) -> bool:
    """Whether a plain value contains :data:`TARGET` as a key at any depth."""
    if isinstance(value, dict):
        return TARGET in value or any(names_a_class(one) for one in value.values())
    return isinstance(value, list) and any(names_a_class(one) for one in value)


def _at_least(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
