"""Every setting of a composed config, and the config with another value of it; settings by files of ``conf/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from knot_runner.config.settings.groups import StageSettings
from knot_runner.config.settings.methods.terms import TERM_SETTINGS
from knot_runner.config.strict import build

CONF = Path(__file__).resolve().parents[1] / "conf"


def built(cls: type, file: str, where: str = "", **changes: Any) -> Any:
    """``cls`` with the values of a file of ``conf/``, if there is one, without those of its defaults list, and with
    ``changes``; errors name keys below ``where``."""
    values = yaml.safe_load((CONF / file).read_text()) if (CONF / file).exists() else {}
    values.pop("defaults", None)
    return build(cls, values | changes, where or file)


def terms_of(values: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Loss terms with ``values`` and otherwise those of ``conf/base/term``."""
    return {name: built(TERM_SETTINGS[name], f"base/term/{name}.yaml", f"method.terms.{name}", **own)
            for name, own in values.items()}  # fmt: skip


def stage(epochs: int, batch_size: int, lr: float, weight_decay: float, **changes: Any) -> StageSettings:
    """A training stage with the other values of ``conf/base/stage.yaml``."""
    values = yaml.safe_load((CONF / "base" / "stage.yaml").read_text())
    own = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay}
    return build(StageSettings, values | own | changes, "training")


def leaves(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting; a preset's grid and report are one each."""
    for key, value in config.items():
        whole = f"{above}{key}"
        if isinstance(value, dict) and value and whole not in ("report", "sweep"):
            yield from leaves(value, f"{whole}.")
        else:
            yield whole, value


def other(value: Any) -> Any:
    """Another value, of the same type where it has one. The id is asked for, not whether the value can be meant."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return [*value, "x"] if isinstance(value, list) else {"x": 1}


def replaced(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """``config`` with another value at the dotted ``key``."""
    first, _, rest = key.partition(".")
    return {**config, first: replaced(config[first], rest, value) if rest else value}
