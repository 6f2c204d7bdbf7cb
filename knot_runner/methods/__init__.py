"""Methods: each is three pure functions, ``init``, ``plan`` and ``fold``, in one file per family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knot_runner.methods import knot


@dataclass(frozen=True)
class Method:
    """init(hp, federation) -> state; plan(hp, state, federation, round) -> requests;
    fold(hp, state, federation, round, requests, artefacts) -> (state, diagnostics)."""

    init: Callable[..., dict[str, Any]]
    plan: Callable[..., list[Any]]
    fold: Callable[..., tuple[dict[str, Any], dict[str, Any]]]


#: ``method.algorithm`` -> its functions; its settings are in ``settings.METHOD_SETTINGS`` under the same name.
METHODS: dict[str, Method] = {
    "knot": Method(knot.init, knot.plan, knot.fold),
    "teachers": Method(knot.init, knot.plan, knot.fold),
}
