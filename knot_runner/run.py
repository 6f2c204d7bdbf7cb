"""One run, whole: found finished, or carried out by the pipeline of its method, and sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.plugins import load_plugins
from knot_runner.files import locked
from knot_runner.pipelines.errand import Errand
from knot_runner.records import read_result, write_result
from knot_runner.settings import ProbeSettings


def run(errand: Errand) -> dict[str, Any]:
    """Carry out one run in its folder and return its result, the content of ``result.json``.

    A finished run is returned at once; an unfinished one goes on from its last commit. Raises :class:`UserError`.
    """
    with locked(Path(errand.settings.paths.out) / ".locks" / errand.run_id):
        finished = read_result(errand.folder)
        if finished is not None:
            return finished
        load_plugins(errand.settings.plugins)
        result = write_result(errand.folder, _carry_out(errand))
        Checkpoint(errand.folder).clear()
        return result


def _carry_out(errand: Errand) -> dict[str, Any]:
    """By the family of the method; each pipeline is imported only when it is needed, for what it imports."""
    if not errand.settings.on_images:
        from knot_runner.pipelines import distillation

        return distillation.carry_out(errand)
    if isinstance(errand.hp, ProbeSettings):
        from knot_runner.pipelines import probing

        return probing.carry_out(errand)
    from knot_runner.pipelines import federated

    return federated.carry_out(errand)
