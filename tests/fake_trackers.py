"""Fakes of the packages of trackers, which keep what a run sends them."""

from __future__ import annotations

import sys
from types import ModuleType
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
