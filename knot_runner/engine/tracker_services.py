"""The package's own trackers, ``tracker=wandb`` (Weights & Biases) and ``tracker=tensorboard``.

A resumed run continues the record that it began earlier in the tracker. TensorBoard's event files are in the subfolder
``tensorboard`` of the run's folder. To view them, run ``tensorboard --logdir outputs``.
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
    """Begin or continue the run in Weights & Biases, and return its mirror. Raises the exceptions of ``wandb.init``."""
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
    """The mirror for Weights & Biases: an object that copies a run's log to this service.

    It implements :class:`~knot_runner.engine.tracker.Mirror`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()

    def log(self, row: LogRow, steps: Counters) -> None:
        """Log one ``row``. ``steps``: the result of :func:`~knot_runner.engine.tracker.counting_keys` for ``row``."""
        for key in [*dict.fromkeys(steps.values()), *steps]:
            if key not in self._defined:
                self._defined.add(key)
                self._run.define_metric(key, step_metric=steps.get(key))
        self._run.log(row)

    def summarize(self, values: Facts) -> None:
        """Add ``values`` to the run's summary. ``values``: the numbers and the ``status`` of the finished run."""
        self._run.summary.update(values)

    def close(self, failed: bool) -> None:
        """End the run in Weights & Biases with exit code 1 if ``failed`` is true, and otherwise with exit code 0."""
        self._run.finish(exit_code=int(failed))


class TensorBoardMirror:
    """The mirror for TensorBoard: an object that writes a run's config and the numbers of its log to event files.

    It implements :class:`~knot_runner.engine.tracker.Mirror`.
    """

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run = run
        self._rows = 0
        self._writer = SummaryWriter(str(run.folder / EVENTS_FOLDER))
        text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
        self._writer.add_text("config", textwrap.indent(text, "    "), 0)

    def log(self, row: LogRow, steps: Counters) -> None:
        """Write each number in ``row`` with a step.

        ``steps`` holds the key of each number's counter. The step is the value of this counter. Without a counter,
        the step is the count of rows that were written before ``row``.
        """
        for key, value, step in points(row, steps, self._rows):
            self._writer.add_scalar(key, value, step)
        self._rows += 1

    def summarize(self, values: Facts) -> None:
        """Write the config and the final numbers ``values``, so that TensorBoard's HPARAMS tab can compare runs."""
        settings = flat(self._run.config, ".")
        plain = {key: value for key, value in settings.items() if isinstance(value, int | float | str)}
        measured = {f"final/{key}": value for key, value, _ in points(values, {}, 0)}
        self._writer.add_hparams(plain, measured, run_name=".")

    def close(self, failed: bool) -> None:
        """Close the event file."""
        self._writer.close()
