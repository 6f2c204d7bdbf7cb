"""Builds the jobs of one grid, of hundreds in seconds: Hydra composes once per choice of groups (``hydra_compose.py``),
then swept values are inserted. For each job only swept keys and interpolations are resolved again; the rest is shared
with the other jobs of the same choice."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing import hydra_compose
from knot_runner.composing.arms import without_arm
from knot_runner.composing.fitting import chosen_hardware, chosen_to_fit, deals_nothing, node_of
from knot_runner.composing.hydra_compose import plain_config
from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.composing.named_models import with_models
from knot_runner.composing.override_errors import one_line
from knot_runner.composing.overrides import parse_overrides
from knot_runner.config.settings import Misfit
from knot_runner.config.settings.run import ARM
from knot_runner.config.strict import as_built
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.messages import LOGGER


class Base:
    """One composed config and the values its jobs share. Every job changes ``config`` in place: all set the same
    keys."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._plain: dict[str, Any] = OmegaConf.to_container(config, resolve=False)
        open_keys = list(_open(self._plain, ()))
        self._open = None if None in open_keys else [".".join(key) for key in open_keys if key]

    def composed(self, overrides: Sequence[Override]) -> DictConfig:
        """The config with the values of ``overrides`` and unresolved interpolations. Raises OmegaConf's own error."""
        merged = any(isinstance(override.value(), dict) for override in overrides)
        config = copy.deepcopy(self._config) if merged else self._config
        for override in overrides:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        return config

    def with_values(self, overrides: Sequence[Override]) -> dict[str, Any]:
        """The config (plain, resolved) with the values of ``overrides``.

        Raises OmegaConf's own error if a key is missing or cannot take its value, and :class:`UserError` if an
        interpolation fails.
        """
        config = self.composed(overrides)
        if self._open is None:
            return plain_config(config)
        try:
            return self._shared(config, [*(override.key_or_group for override in overrides), *self._open])
        except (OmegaConfBaseException, KeyError, TypeError):  # the last two: a key that leads into a list
            return plain_config(config)  # raises a readable error if the config is invalid

    def _shared(self, config: DictConfig, keys: list[str]) -> dict[str, Any]:
        plain = self._plain
        for key in keys:
            value = OmegaConf.select(config, key, throw_on_missing=True)
            plain = _replaced(plain, key.split("."), plain_config(value) if OmegaConf.is_config(value) else value)
        return plain


def _open(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...] | None]:
    """Yield the keys whose values must be resolved; None for a missing value or one that no dotted key can name."""
    if isinstance(value, dict):
        for key, one in value.items():
            nameable = isinstance(key, str) and key and not set(key) & set(".[]")
            inner = list(_open(one, (*path, str(key))))
            yield from inner if nameable else [None] * bool(inner)
    elif isinstance(value, list):
        if any(list(_open(one, path)) for one in value):
            yield None
    elif isinstance(value, str) and ("${" in value or value == "???"):
        yield None if value == "???" else path


def _replaced(plain: dict[str, Any], key: list[str], value: Any) -> dict[str, Any]:
    """``plain`` with ``value`` at ``key``; only the mappings on the way to ``key`` are copied."""
    first, *rest = key
    return {**plain, first: _replaced(plain[first], rest, value) if rest else value}


class JobGrid:
    """Composes the jobs of one grid, within ``initialize_config_dir``.

    ``late``: keys that choose no group, set after Hydra has composed; ``label_keys``: keys shown in a job's label;
    ``words``: all overrides as typed. ``size``: number of its jobs; ``left_out``: number of jobs left out; ``misfit``:
    reason for the last of these.
    """

    def __init__(self, config_dir: str | None, late: set[str], label_keys: set[str], words: list[str]) -> None:
        self.config_dir, self.late, self.label_keys, self.words = config_dir, late, label_keys, words
        self.hydra = DictConfig({})
        self.misfit, self.left_out, self.size = "", 0, 0
        self._composed: dict[tuple[str, ...], tuple[Base, Any, list[str], DictConfig]] = {}
        self._parsed: dict[str, Override] = {}
        self._noted: set[str] = set()
        self._models: dict[str, dict[str, Any]] = {}

    def job(self, picked: list[str], chosen: bool) -> ComposedJob | None:
        """Compose one job; with ``chosen`` (its groups come from a glob), None if the groups do not fit together."""
        base, claims, fitting, self.hydra = self._based(picked)
        try:
            config = base.with_values([self._override(o) for o in picked if _key(o) in self.late])
        except OmegaConfBaseException as problem:
            return self._left_out(self._said(_in_place(fitting, without_arm(picked)), problem), chosen)
        config = _under_preset(with_models(config, self._model), self.words)
        if claims is not None:
            config = {**config, "report": {**config["report"], "claims": claims}}
        try:
            job = job_of(config, picked, ", ".join(o for o in picked if _key(o) in self.label_keys))
        except Misfit as problem:
            return self._left_out(problem, chosen)
        # other groups keep their spelling, since run ids of presets depend on it (method.temperature=4,2,1)
        training = as_built(config.get("training"), job.settings.training)
        config = {**config, "training": training} if training else config
        arm = next((o.partition("=")[2] for o in picked if _key(o) == ARM), "")
        return dataclasses.replace(job, config=config, arm=arm)

    def _said(self, overrides: list[str], problem: OmegaConfBaseException) -> UserError:
        """Hydra's error for ``overrides`` that OmegaConf refused with ``problem``, in one line."""
        try:
            hydra_compose.hydra_config(overrides, self.config_dir)
        except UserError as said:
            return said
        return UserError(one_line(str(problem)))

    def _left_out(self, problem: UserError, chosen: bool) -> None:
        """Raise ``problem``, unless the groups of the job were ``chosen`` by a glob: then count the job as left out."""
        if not chosen:
            raise problem from None
        self.misfit, self.left_out = str(problem), self.left_out + 1

    def unresolved(self, picked: list[str]) -> dict[str, Any]:
        """Of a composed job, see :func:`~knot_runner.composing.commands.composed_config`."""
        base, claims, _, hydra_part = self._based(picked)
        config = OmegaConf.to_container(base.composed([self._override(o) for o in picked if _key(o) in self.late]))
        if claims is not None:
            config["report"]["claims"] = claims
        hydra = {key: value for key, value in OmegaConf.to_container(hydra_part).items() if not key.endswith("help")}
        return {"hydra": hydra, **config}

    def _model(self, name: str) -> dict[str, Any]:
        """The settings of the model in ``conf/model/NAME.yaml``."""
        if name not in self._models:
            names = choices("model", self.config_dir)
            if name not in names:
                raise UserError(f"there is no model {name!r}{nearest(name, names)}")
            composed = hydra_compose.choice_config(f"model/{name}", self.config_dir)
            self._models[name] = plain_config(OmegaConf.masked_copy(composed, ["model"]))["model"]
        return self._models[name]

    def _override(self, text: str) -> Override:
        if text not in self._parsed:
            (self._parsed[text],) = parse_overrides([text])
        return self._parsed[text]

    def _based(self, picked: list[str]) -> tuple[Base, Any, list[str], DictConfig]:
        """Return what :meth:`_base` makes of the groups of ``picked``, once."""
        early = tuple(o for o in picked if _key(o) not in self.late)
        if early not in self._composed:
            self._composed[early] = self._base(without_arm(early))
        return self._composed[early]

    def _base(self, early: list[str]) -> tuple[Base, Any, list[str], DictConfig]:
        """Return (Hydra's composed config, its claims, automatic choices that were added, its ``hydra`` part)."""
        config = hydra_compose.hydra_config(early, self.config_dir)
        typed = {_key(override).lstrip("+~") for override in early} | self.late
        fitting, why = chosen_to_fit(config, typed)
        hardware, where = chosen_hardware(config, self.words)  # which hangs on nothing that is chosen to fit
        choices = [*fitting, *hardware]
        if choices:
            config = hydra_compose.hydra_config(_in_place(choices, early), self.config_dir)
        for note in filter(None, (why, where)):
            self._note(note)
        with open_dict(config):
            hydra = config.pop("hydra")
            if deals_nothing(config) and not any(key.partition(".")[0] == "partition" for key in typed):
                config.pop("partition", None)  # the task's default, for methods that have clients
        config, claims = _apart_from_claims(config)
        return Base(config), claims, choices, hydra

    def _note(self, text: str) -> None:
        """Log ``text``, once."""
        if text not in self._noted:
            self._noted.add(text)
            LOGGER.info("%s", text)


def _under_preset(config: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A composed, plain ``config`` whose tracker, if any, has the preset in the overrides ``words`` as its group. Run
    ids do not depend on the tracker, so a run made without one stays the same."""
    tracker = config.get("tracker")
    preset = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), None)
    mirrored = isinstance(tracker, dict) and tracker.get("name", "none") != "none"
    if preset is None or not mirrored or tracker.get("group") is not None:
        return config
    return {**config, "tracker": {**tracker, "group": preset}}


def _in_place(choices: list[str], typed: list[str]) -> list[str]:
    """``choices`` and the ``typed`` overrides of other keys: a choice replaces ``hardware=auto``."""
    keys = {_key(choice) for choice in choices}
    return [*choices, *(override for override in typed if _key(override) not in keys)]


def _apart_from_claims(config: DictConfig) -> tuple[DictConfig, Any]:
    """Return (``config`` without claims, the claims), which are the same for all jobs and slow to resolve for each."""
    report = node_of(config, "report")
    claims = node_of(report, "claims") if OmegaConf.is_dict(report) else None
    if not OmegaConf.is_config(claims):
        return config, None
    with open_dict(report):
        del report["claims"]
    return config, OmegaConf.to_container(claims)


def _key(override: str) -> str:
    return override.split("=", 1)[0]
