"""The bound of a run that is finished: its stages are found again in the store by planning it once more."""

from __future__ import annotations

from typing import Any

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import KnotSettings
from knot_runner.engine.store import Store
from knot_runner.methods.federation import Federation
from knot_runner.methods.weighting import needs_bias
from knot_runner.pipelines.bound.measure import measure_bound
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.parties.finished_rounds import finished_rounds
from knot_runner.pipelines.parties.setup import make_federation
from knot_runner.util.errors import UserError


def bound_of_run(context: RunContext, result: dict[str, Any]) -> dict[str, Any]:
    """:func:`~knot_runner.pipelines.bound.measure.measure_bound` of the finished run of ``context`` with ``result``.

    Trains nothing. Raises :class:`UserError` for a run that is no KNOT distillation, or diverged, and naming what is
    missing where the data are not those that it was made from or a stage is not in the store.
    """
    hp, settings = context.hp, context.settings
    if not isinstance(hp, KnotSettings):
        raise UserError(f"{context.folder}: is a run of {settings.method['name']}; the bound is of KNOT's students")
    if result["status"] != "done":
        raise UserError(f"{context.folder}: diverged, so it has no student to bound")
    load_plugins(settings.plugins)
    task = context.services.parties(context)
    if result["data"] != task.source_digest:
        raise UserError(f"{context.folder}: was made from other data than are read now; paths.data=DIR names its own")
    store = context.store
    federation = make_federation(context, task, store, hp.bias if needs_bias(hp.weighting) else None)
    state = finished_state(context, federation, store)
    with context.services.executor(
        store, settings.hardware, context.data_root, settings.plugins, context.progress
    ) as executor:
        return measure_bound(context, federation, state, executor)


def finished_state(context: RunContext, federation: Federation, store: Store) -> dict[str, Any]:
    """The state that the run's method ended with, of stages that are all in ``store``. Raises :class:`UserError` naming
    the first that is not."""
    *_, last = finished_rounds(context, federation, store)
    return last.state
