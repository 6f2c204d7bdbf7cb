"""Hydra's flags that print something instead of running: ``--cfg``, ``--info``, ``--hydra-help``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import Container, OmegaConf

from knot_runner.composing.catalog import config_folder
from knot_runner.composing.commands import compose_all, composed_config
from knot_runner.composing.flags import INFO
from knot_runner.composing.override_errors import message_text
from knot_runner.composing.overrides import config_dir_of
from knot_runner.composing.own_yaml import search_path
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER

SHOWING = ("--cfg", "--info", "--package", "--resolve")
CONFIG_PARTS = ("job", "hydra", "all")
HYDRA_HELP = """\
knot-runner composes its runs with Hydra. These of Hydra's flags are honoured:

  -c, --cfg job|hydra|all  the composed config as YAML; of a grid, its first job
  -p, --package KEY        with --cfg: this part of it alone
  --resolve                with --cfg: interpolations replaced
  -i, --info [WHAT]        how Hydra composes it: all, config, defaults,
                           defaults-tree, plugins, searchpath
  -m, --multirun           a grid; values with commas are one without it, too
  -cd, --config-dir DIR    adds a folder of YAML of your own
  -sc, --shell-completion install=SHELL
                           completion; bash, zsh: eval "$(knot-runner -sc ...)",
                           fish: knot-runner -sc install=fish | source
  --version, -h, --help    of knot-runner

Overrides are Hydra's: key=value, +key=value, ~key, a,b, range(0,5),
choice(a,b), glob(fed*). +experiment=NAME is experiment=NAME, ~tracker is
tracker=none.

Of Hydra's own keys:

  hydra/launcher=basic, fused, joblib, ray, submitit_local, submitit_slurm
  hydra.launcher.*, hydra.sweeper.max_batch_size
  hydra/sweeper=optuna, hydra.sweeper.n_trials, hydra.sweeper.n_jobs,
  hydra.sweeper.sampler.seed

Any other flag or key of Hydra's is refused, with what to type instead."""


def shows(arguments: Sequence[str]) -> bool:
    """Whether a command line (with joined flags) has one of these flags."""
    return any(argument.partition("=")[0] in SHOWING for argument in arguments)


def show_composed(arguments: Sequence[str]) -> int:
    """Print the output of ``--cfg`` or ``--info``, after the usual checks of the command line; returns the exit
    code."""
    given = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in SHOWING:
            given[name] = value
    own = [argument for argument in arguments if argument.partition("=")[0] not in SHOWING]
    _check(given)
    _, commands = compose_all(own, first=True)
    config_dir = config_dir_of([flag for flag in commands[0].arguments if flag.startswith("-")])
    jobs = sum(command.grid.size for command in commands)
    if jobs > 1:
        LOGGER.info("the first of %d jobs", jobs)
    composed, overrides = composed_config(commands[0])
    if "--info" in given:
        _print_info(given["--info"] or "all", [*search_path(config_dir), *overrides])
        return 0
    part = given["--cfg"]
    config = OmegaConf.create(composed)
    if "--resolve" in given:
        OmegaConf.resolve(config)
        config = OmegaConf.create({"hydra": config["hydra"], **commands[0].jobs[0].config})
    if part == "hydra":
        config = OmegaConf.masked_copy(config, ["hydra"])
    elif part == "job":
        del config["hydra"]
    _print_part(config, given.get("--package", "_global_"))
    return 0


def _check(given: dict[str, str]) -> None:
    """Raises :class:`UserError` for an invalid value of such a flag and for a flag that does not go with another."""
    part, info = given.get("--cfg"), given.get("--info")
    if part is not None and info is not None:
        raise UserError("--cfg and --info: one of them is right")
    if part is not None and part not in CONFIG_PARTS:
        raise UserError(f"--cfg: {message_text(part) or 'without a value'}: --cfg job, hydra or all is right")
    if info and info not in INFO:
        raise UserError(f"--info: there is no {message_text(info)!r}{nearest(info[:40], INFO)}")
    for name in ("--package", "--resolve"):
        if name in given and part is None:
            raise UserError(f"{name}: goes with --cfg, as in --cfg job {name}{' KEY' * (name == '--package')}")
    if "--package" in given and not given["--package"]:
        raise UserError("--package: without a value; --package KEY is right")


def _print_part(config: Container, key: str) -> None:
    """Print the part of the config under ``key``. Raises :class:`UserError` if there is no such key."""
    part = config if key == "_global_" else OmegaConf.select(config, key)
    if part is None:
        raise UserError(f"--package: the composed config has nothing under {message_text(key)!r}")
    if not OmegaConf.is_config(part):
        print(part)
        return
    head = "" if key == "_global_" else f"# @package {key}\n"
    print(head + OmegaConf.to_yaml(part), end="")


def _print_info(what: str, overrides: list[str]) -> None:
    """Print Hydra's own information. Hydra prints through the root logger, which is restored afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level
    root.handlers = []
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            GlobalHydra.instance().hydra.show_info(what, config_name="config", overrides=overrides)
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
