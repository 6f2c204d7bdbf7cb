"""Fakes of the packages of trackers, which keep what a run sends them."""

from __future__ import annotations

import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class WandbRun:
    """As the run that ``wandb.init(**settings)`` returns."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.rows, self.summary, self.codes, self.steps = settings, [], {}, [], {}

    def log(self, row):
        self.rows.append(row)

    def define_metric(self, key, step_metric=None):
        assert key not in self.steps and step_metric in {None, *self.steps}
        self.steps[key] = step_metric

    def finish(self, exit_code):
        self.codes.append(exit_code)


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> list[WandbRun]:
    """Replace ``wandb.init``; return the list to which each run is added."""
    import wandb

    runs = []
    monkeypatch.setattr(wandb, "init", lambda **settings: runs.append(WandbRun(**settings)) or runs[-1])
    return runs


class Writer:
    """As ``torch.utils.tensorboard.SummaryWriter``."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, *arguments))

    def given(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of the method ``name``."""
        return [call[1:] for call in self.calls if call[0] == name]


def fake_tensorboard(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """Replace TensorBoard; return the list to which each writer is added."""
    writers = []
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = lambda folder: writers.append(Writer(folder)) or writers[-1]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: True)
    return writers


class MlflowClient:
    """As ``mlflow.MlflowClient``; ``runs`` outlives it."""

    runs: dict[str, Any] = {}

    def __init__(self, tracking_uri):
        self.uri = tracking_uri

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name):
        assert name == "knot_runner"
        return "7"

    def search_runs(self, experiments, condition, max_results):
        assert experiments == ["7"]
        return [run for run in self.runs.values() if condition == f"tags.`knot_runner.run_id` = '{run.id}'"]

    def create_run(self, experiment, run_name, tags):
        info, run_id = SimpleNamespace(run_id="m1"), tags["knot_runner.run_id"]
        run = SimpleNamespace(id=run_id, info=info, name=run_name, tags=tags, uri=self.uri)
        run.params, run.metrics, run.states, run.batches = {}, [], [], []
        self.runs["m1"] = run
        return run

    def update_run(self, run_id, status):
        self.runs[run_id].states.append(status)

    def log_batch(self, run_id, metrics=(), params=()):
        self.runs[run_id].batches.append(len(params) + len(metrics))
        assert all(abs(one[2] / 1000 - time.time()) < 60 for one in metrics)  # milliseconds
        self.runs[run_id].metrics += [(one[0], one[1], one[3]) for one in metrics]
        self.runs[run_id].params |= dict(params)

    def set_tag(self, run_id, key, value):
        self.runs[run_id].tags[key] = value

    def set_terminated(self, run_id, status):
        self.runs[run_id].states.append(status)


def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace MLflow; return its runs."""
    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.__spec__ = ModuleSpec("mlflow", None)
    package.MlflowClient = MlflowClient
    entities.Metric = entities.Param = lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(MlflowClient, "runs", {})
    return MlflowClient.runs
