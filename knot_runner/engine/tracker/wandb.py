"""``tracker=wandb``: one run of Weights & Biases per run id, so that a resumed run continues it."""

from __future__ import annotations

import os
from typing import Any

from knot_runner.engine.tracker.mirror import FINISH_SECONDS, TrackedRun


def begin_wandb(run: TrackedRun) -> WandbMirror:
    """Raises whatever ``wandb.init`` does."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    began = wandb.init(
        project=run.spec.project,
        mode=run.spec.mode,
        group=run.group,
        job_type=run.family,
        tags=run.tags,
        id=run.run_id,
        name=run.name,
        resume="allow",
        reinit="create_new",  # the jobs of a fused sweep are threads of one process, each with its run
        dir=str(run.folder),
        config=run.config,
        settings=wandb.Settings(init_timeout=FINISH_SECONDS, console="off"),
    )
    return WandbMirror(began)


class WandbMirror:
    """See :class:`~knot_runner.engine.tracker.mirror.Mirror`. Each key is plotted over its counter."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()

    def log(self, row: dict[str, Any], steps: dict[str, str]) -> None:
        for key in [*dict.fromkeys(steps.values()), *steps]:
            if key not in self._defined:
                self._defined.add(key)
                self._run.define_metric(key, **({"step_metric": steps[key]} if key in steps else {}))
        self._run.log(row)

    def summarise(self, values: dict[str, Any]) -> None:
        self._run.summary.update(values)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
