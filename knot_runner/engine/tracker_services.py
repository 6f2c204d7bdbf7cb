"""The package's own trackers. Both create one tracker run per run id, which a resumed run continues.

``tracker=wandb``: Weights & Biases; ``tracker=tensorboard``: event files in ``tensorboard/`` in the run's folder, for
``tensorboard --logdir outputs``.
"""

from __future__ import annotations

import os
import textwrap
from typing import Any

import yaml

from knot_runner.engine.tracker import FINISH_SECONDS, Counters, TrackedRun, flat, points
from knot_runner.util.files import Facts, LogRow

EVENTS_FOLDER = "tensorboard"


def begin_wandb(run: TrackedRun) -> WandbMirror:
    """Begin or continue the run in Weights & Biases. Raises the exceptions of ``wandb.init``."""
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
        reinit="create_new",
        dir=str(run.folder),
        config=run.config,
        settings=wandb.Settings(init_timeout=FINISH_SECONDS, console="off"),
    )
    return WandbMirror(began)


class WandbMirror:
    """Mirror to Weights & Biases, which plots each key over its counter.

    See :class:`~knot_runner.engine.tracker.Mirror`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()

    def log(self, row: LogRow, steps: Counters) -> None:
        """Log a row."""
        for key in [*dict.fromkeys(steps.values()), *steps]:
            if key not in self._defined:
                self._defined.add(key)
                self._run.define_metric(key, step_metric=steps.get(key))
        self._run.log(row)

    def summarize(self, values: Facts) -> None:
        """Log the numbers of the finished run."""
        self._run.summary.update(values)

    def close(self, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))


class TensorBoardMirror:
    """Mirror to TensorBoard, numbers only; see :class:`~knot_runner.engine.tracker.Mirror`."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._rows = 0
        self._writer = SummaryWriter(str(run.folder / EVENTS_FOLDER))
        text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        self._writer.add_text("config", textwrap.indent(text, "    "), 0)

    def log(self, row: LogRow, steps: Counters) -> None:
        """Log a row."""
        for key, value, step in points(row, steps, self._rows):
            self._writer.add_scalar(key, value, step)
        self._rows += 1

    def summarize(self, values: Facts) -> None:
        """Log the numbers as metrics of the hyperparameters, so that the HPARAMS dashboard can compare runs."""
        settings = flat(self._run.config, ".")
        plain = {key: value for key, value in settings.items() if isinstance(value, int | float | str)}
        measured = {f"final/{key}": value for key, value, _ in points(values, {}, 0)}
        self._writer.add_hparams(plain, measured, run_name=".")

    def close(self, failed: bool) -> None:
        """End the run."""
        self._writer.close()
