"""Small tasks for the tests: settings built as a run builds them, and files written into a temporary folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from knot_runner.config.settings.text_tasks import TaskSettings
from knot_runner.config.strict import build

PRESETS = Path(__file__).resolve().parents[3] / "conf" / "task"

COLUMNS = {"text": "text", "label": "label"}
LABELS = {"bad": "bad", "good": "good"}


def party(role: str, path: str, **changes: Any) -> dict[str, Any]:
    """A data set given as one csv pool."""
    local = {"format": "csv", "files": {"pool": [{"path": path}]}, "columns": dict(COLUMNS)}
    return {"role": role, "labels": dict(LABELS), "drop": [], "local": local} | changes


@pytest.fixture
def task_dict() -> dict[str, Any]:
    """Settings of a two-label task over a.csv (local), g.csv (global) and t.csv (transfer); change and build it."""
    return {
        "name": "tiny",
        "kind": "sentiment",
        "source": "local",
        "labels": {"names": ["bad", "good"], "coordinates": [[-1], [1]], "support": "semantic"},
        "datasets": {"A": party("local", "a.csv"), "G": party("global", "g.csv"), "T": party("transfer", "t.csv")},
        "split": {"valid": 0.2, "test": 0.2, "seed": 1},
        "max_length": 50,
        "context": 0,
        "missing": "error",
        "max_examples": None,
        "score": "f1",
    }


@pytest.fixture
def make() -> Callable[[dict[str, Any]], TaskSettings]:
    return lambda values: build(TaskSettings, values, "task")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a.csv, g.csv and t.csv, ten rows of each label in each."""
    for name in ("a", "g", "t"):
        rows = [f"{name} text {i},{'bad' if i % 2 else 'good'}\n" for i in range(20)]
        (tmp_path / f"{name}.csv").write_text("".join(["text,label\n", *rows]))
    return tmp_path


def preset(name: str, **changes: Any) -> TaskSettings:
    """Settings of a file in conf/task, with top-level changes."""
    config = OmegaConf.load(PRESETS / f"{name}.yaml")
    config.update(changes)
    return build(TaskSettings, OmegaConf.to_container(config, resolve=True), "task")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
