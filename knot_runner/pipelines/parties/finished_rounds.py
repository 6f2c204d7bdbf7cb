"""The rounds of a finished run of stages: found again in the store by planning the run once more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from knot_runner.engine.requests import StageRequest, request_title
from knot_runner.engine.stages import key_of
from knot_runner.engine.store import Artefact, Store
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federation import Federation
from knot_runner.pipelines.context import RunContext
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class FinishedRound:
    """What was asked, what came of it, in the same order, and the method's state then."""

    requests: list[StageRequest]
    artefacts: list[Artefact]
    state: dict[str, Any]


def finished_rounds(context: RunContext, federation: Federation, store: Store) -> Iterator[FinishedRound]:
    """Every round of the run's method. Raises :class:`UserError` naming the first stage that is not in ``store``."""
    hp, method = context.hp, METHODS[context.settings.method["algorithm"]]
    state, round = method.init(hp, federation), 0
    while requests := method.plan(hp, state, federation, round):
        artefacts: list[Artefact] = []
        for request in requests:
            found = store.find(*key_of(request))
            if found is None:
                raise UserError(
                    f"{store.folder(*key_of(request))}: the run's {request_title(request)} is gone; another "
                    "paths.out=DIR makes the run, and it, anew"
                )
            artefacts.append(found)
        state, _ = method.fold(hp, state, federation, round, requests, artefacts)
        yield FinishedRound(requests, artefacts, state)
        round += 1
