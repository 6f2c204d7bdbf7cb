"""The package's own trackers. Each uses one tracker run per run id, so that a resumed run continues its tracker run.

``tracker=wandb``: Weights & Biases; ``tracker=tensorboard``: event files in ``tensorboard/`` in the run's folder, for
``tensorboard --logdir outputs``; ``tracker=mlflow``: MLflow, in the project's experiment.
"""

from __future__ import annotations

import os
import re
import textwrap
import time
from typing import Any

import yaml

from knot_runner.engine.tracker import FINISH_SECONDS, Counters, TrackedRun, flat, points
from knot_runner.util.files import Facts, LogRow

EVENTS_FOLDER = "tensorboard"
#: The tag by which a resumed run is found.
RUN_ID = "knot_runner.run_id"
#: The number of parameters per request, and of characters per value, that every server version accepts.
BATCH, LONGEST = 100, 500
_UNUSUAL = re.compile(r"[^\w./ -]")


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
                self._run.define_metric(key, **({"step_metric": steps[key]} if key in steps else {}))
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

        self._run, self._rows = run, 0
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


def begin_mlflow(run: TrackedRun) -> MlflowMirror:
    """Begin or continue the run in MLflow. Raises the exceptions of MLflow's client."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(FINISH_SECONDS))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    from mlflow import MlflowClient
    from mlflow.entities import Param

    client = MlflowClient(tracking_uri=run.spec.uri)
    experiment_entry = client.get_experiment_by_name(run.spec.project)
    experiment = experiment_entry.experiment_id if experiment_entry else client.create_experiment(run.spec.project)
    earlier = client.search_runs([experiment], f"tags.`{RUN_ID}` = '{run.run_id}'", max_results=1)
    if earlier:
        mlflow_id = earlier[0].info.run_id
        client.update_run(mlflow_id, status="RUNNING")
        return MlflowMirror(client, mlflow_id)
    facts = {"group": run.group, "job_type": run.family, "task": run.task, "method": run.method}
    tags = {RUN_ID: run.run_id, **facts, **{f"tag.{tag}": "true" for tag in run.spec.tags}}
    mlflow_id = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    params = [Param(_key(key), str(value)[:LONGEST]) for key, value in flat(run.config, ".").items()]
    for at in range(0, len(params), BATCH):
        client.log_batch(mlflow_id, params=params[at : at + BATCH])
    return MlflowMirror(client, mlflow_id)


class MlflowMirror:
    """Mirror to MLflow, numbers only; see :class:`~knot_runner.engine.tracker.Mirror`."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id, self._rows = client, run_id, 0

    def log(self, row: LogRow, steps: Counters) -> None:
        """Log a row."""
        self._send(points(row, steps, self._rows))
        self._rows += 1

    def summarize(self, values: Facts) -> None:
        """Log the numbers of the finished run."""
        self._send((f"final/{key}", value, step) for key, value, step in points(values, {}, 0))
        if "status" in values:
            self._client.set_tag(self._id, "status", values["status"])

    def close(self, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _send(self, numbers: Any) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_key(key), value, now, step) for key, value, step in numbers]
        if metrics:
            self._client.log_batch(self._id, metrics=metrics)


def _key(name: str) -> str:
    """Return ``name`` with only those characters that MLflow accepts."""
    return _UNUSUAL.sub("_", name)
