"""From the command line to jobs: overrides, presets with their grid, one checked set of settings per job."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from knot_runner.errors import UserError, nearest
from knot_runner.listing import GROUPS, config_folder
from knot_runner.misspelt import bad_override, missing_config, one_line
from knot_runner.settings import Settings, build_run, run_id

#: What a key that is not in the config selects to (None can be a value).
_ABSENT = object()
#: Settings that a job's title says in words of its own (:func:`variant`).
TOLD = ("method.temperature", "method.lr_control", "method.clustering.graph", "method.fedwad.support")


@dataclass(frozen=True)
class ComposedJob:
    """One job: its overrides, composed config (plain, resolved), settings, and the method's own settings."""

    overrides: list[str]
    config: dict[str, Any]
    settings: Settings
    method: Any
    #: what sets it apart from the preset's other jobs, beyond method and seed
    label: str

    @property
    def run_id(self) -> str:
        return run_id(self.config)

    @property
    def folder(self) -> Path:
        return run_folder(self.settings, self.run_id)

    @property
    def title(self) -> str:
        """Its name for a person: task, method, seed, and whatever else sets it apart from the others of its grid."""
        settings = self.settings
        name = f"{settings.task.name} {settings.method['name']}{variant(settings.method)} seed {settings.seed}"
        others = [part for part in self.label.split(", ") if part and part.split("=")[0] not in TOLD]
        return " ".join([name, *others])


def as_yaml(config: dict[str, Any]) -> str:
    """A composed, plain config as ``config.yaml`` has it: less a preset's grid and how it is shown."""
    own = {key: value for key, value in config.items() if key not in ("sweep", "report")}
    return OmegaConf.to_yaml(OmegaConf.create(own))


def run_folder(settings: Settings, name: str) -> Path:
    """``<out>/<task>/<method>/<run id>``."""
    return Path(settings.paths.out) / settings.task.name / settings.method["name"] / name


def variant(method: dict[str, Any]) -> str:
    """What a sweep would otherwise not show: the temperature of a chilled method, the graph, the measures."""
    parts = []
    if method.get("temperature") not in (None, 1):
        parts.append(f"T={method['temperature']:g}" + (" (in the rate)" if method["lr_control"] else ""))
    if method.get("clustering"):
        parts.append(method["clustering"]["graph"])
    if method.get("fedwad") and method.get("distance") != "exact":
        mode, support = method["fedwad"]["mode"], method["fedwad"]["support"]
        parts.append(mode if mode == "exact" else f"S={support}")
    return "".join(f" {part}" for part in parts)


def compose_all(arguments: list[str]) -> tuple[list[ComposedJob], list[str]]:
    """(All jobs, and the arguments that Hydra gets: the preset's grid included.) Raises :class:`UserError`."""
    flags = [a for a in arguments if a.startswith("-")]
    config_dir = _config_dir(flags)
    overrides = expand_preset([a for a in arguments if not a.startswith("-")], config_dir)
    jobs = compose_jobs(overrides, config_dir)
    return jobs, [*flags, *overrides]


def _config_dir(flags: list[str]) -> str | None:
    folder = None
    for flag in flags:
        if flag.startswith("--config-dir="):
            folder = flag.split("=", 1)[1]
            if not Path(folder).is_dir():
                raise UserError(f"--config-dir: {folder}: is not a folder")
        elif flag not in ("-m", "--multirun"):
            raise UserError(f"{flag}: there is no such flag{nearest(flag, ['-m', '--multirun', '--config-dir=DIR'])}")
    return folder


def expand_preset(arguments: list[str], config_dir: str | None) -> list[str]:
    """``arguments`` with the grid of their preset (``sweep:`` in its YAML) added, less what they set themselves."""
    if not any(a.startswith("experiment=") for a in arguments):
        return list(arguments)
    fixed = [o.input_line for o in _parse(arguments) if not o.is_sweep_override()]
    grid = _compose(fixed, config_dir).get("sweep") or {}
    given = {o.key_or_group.lstrip("+~") for o in _parse(arguments)}
    return [*arguments, *(f"{key}={values}" for key, values in grid.items() if key not in given)]


def compose_jobs(arguments: list[str], config_dir: str | None) -> list[ComposedJob]:
    """Every job of a (multi)run, composed and checked; nothing heavy is loaded. Raises :class:`UserError`.

    Hydra composes once per choice of groups; swept values are put into copies of that, which is what makes a grid of
    hundreds of jobs answer in seconds.
    """
    overrides = _parse(arguments)
    choices = [list(o.sweep_string_iterator()) if o.is_sweep_override() else None for o in overrides]
    swept = [o for o, values in zip(overrides, choices, strict=True) if values and len(values) > 1]
    axes = [
        [f"{o.get_key_element()}={value}" for value in values] if values else [o.input_line]
        for o, values in zip(overrides, choices, strict=True)
    ]
    late = {o.get_key_element() for o in swept if o.type == OverrideType.CHANGE and o.key_or_group not in GROUPS}
    apart = {o.get_key_element() for o in swept} - {"method", "seed", "task"}
    composed: dict[tuple[str, ...], tuple[DictConfig, Any]] = {}
    jobs = []
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        for picked in itertools.product(*axes):
            early = tuple(o for o in picked if _key(o) not in late)
            if early not in composed:
                composed[early] = _apart_from_claims(_compose_here(list(early), config_dir))
            base, claims = composed[early]
            values = [o for o in picked if _key(o) in late]
            config = _with_values(base, values, list(picked), config_dir)
            if claims is not None:
                config["report"]["claims"] = claims
            settings, method = build_run(config)
            label = ", ".join(o for o in picked if _key(o) in apart)
            jobs.append(ComposedJob(list(picked), config, settings, method, label))
    return jobs


def _apart_from_claims(config: DictConfig) -> tuple[DictConfig, Any]:
    """``config`` without its claims, and these: long, the same for all jobs, and slow to resolve hundreds of times."""
    report = config.get("report")
    claims = report.get("claims") if OmegaConf.is_dict(report) else None
    if not OmegaConf.is_config(claims):
        return config, None
    with open_dict(report):
        del report["claims"]
    return config, OmegaConf.to_container(claims)


def _key(override: str) -> str:
    return override.split("=", 1)[0]


def _with_values(base: DictConfig, values: list[str], overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """``base`` with swept values set, resolved. A key that is not there is named as Hydra's own error is.

    All jobs of one ``base`` set the same keys, so it need not be copied, but for mappings, which are merged.
    """
    parsed = _parse(values)
    config = copy.deepcopy(base) if any(isinstance(override.value(), dict) for override in parsed) else base
    for override in parsed:
        if OmegaConf.select(config, override.key_or_group, default=_ABSENT) is _ABSENT:
            _compose_here(overrides, config_dir)  # raises the one-line error
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    return plain_config(config)


def plain_config(config: Any) -> dict[str, Any]:
    """An OmegaConf config as plain, resolved values. Raises :class:`UserError` for an interpolation that fails."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as problem:
        raise UserError(one_line(str(problem))) from None


def _parse(arguments: list[str]) -> list[Override]:
    try:
        overrides = OverridesParser.create().parse_overrides(arguments)
    except HydraException as problem:
        raise UserError(f"command line: {one_line(str(problem))}") from None
    for override in overrides:
        named = override.is_sweep_override() or override.is_delete() or isinstance(override.value(), str | list)
        if override.key_or_group in GROUPS and not named:
            raise UserError(f"{override.input_line}: is not the name of a {override.key_or_group} ('knot-runner ls')")
    return overrides


def _compose(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return plain_config(_compose_here(overrides, config_dir))


def _compose_here(overrides: list[str], config_dir: str | None, hydra: bool = False) -> DictConfig:
    """Inside an ``initialize_config_dir``; every failure is one line that names the key. ``hydra``: with its node."""
    search = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    try:
        return compose("config", overrides=[*search, *overrides], return_hydra_config=hydra)
    except MissingConfigException as problem:
        raise UserError(missing_config(str(problem))) from None
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(bad_override(str(problem), overrides, search)) from None


def check_launch(arguments: list[str]) -> None:
    """Whether what ``arguments`` ask of Hydra makes sense, before it begins: its own answer would be a traceback.

    Raises :class:`UserError` naming the key.
    """
    asked = [a for a in arguments if a.startswith(("hydra.", "hydra/"))]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        hydra = _compose_here(asked, None, hydra=True).hydra
    if "plan" not in hydra.sweeper:
        raise UserError("hydra/sweeper: knot-runner's own, missing, expands grids and resumes; without it is right")
    size, together = hydra.sweeper.max_batch_size, hydra.launcher.get("together", 0)
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UserError(f"hydra.sweeper.max_batch_size: {size!r} is not a whole number above 0, or null for all jobs")
    if not isinstance(together, int) or together < 0:
        raise UserError(f"hydra.launcher.together: {together!r} is not a number of jobs; 0 chooses by the hardware")
