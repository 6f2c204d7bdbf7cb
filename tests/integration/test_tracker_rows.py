"""tracker=wandb mirrors the numbers of every kind of run: rows as they come, and the result as the summary."""

from __future__ import annotations

import json

import pytest
import wandb
import yaml

from knot_runner.cli.main import main
from tests.tiny import TINY, TINY_IMAGES

DATA = ["task=femnist", "task.limit=120", "task.shape=[1,8,8]", "partition.count=3", "partition.alpha=5.0"]
CORESET = [*DATA, "method.points=2", "method.epochs=2", "method.samples=10", "method.fedwad.iterations=2"]
#: kind of run -> a key, and the key that counts it
STEPS = {
    "distillation": ("local Cell/loss", "local Cell/epoch"), "teachers": ("local Cell/loss", "local Cell/epoch"),
    "federated": ("accuracy", "round"), "distance": ("value", "iteration"), "coreset": ("loss", "epoch"),
    "personalised": ("personalisation/id_accuracy", "personalisation/epoch"),
}  # fmt: skip
#: kind of run -> its command, keys that some row has, and keys of the summary
RUNS = {
    "distillation": (TINY, {"local Cell/loss", "pretrain Food/valid", "loss"}, {"f1/ALL", "selected_epoch"}),
    "teachers": ([*TINY, "method=teachers"], {"local Cell/loss"}, {"f1/ALL"}),
    "federated": (TINY_IMAGES, {"round", "accuracy"}, {"accuracy/ALL", "rounds"}),
    "personalised": (
        [*TINY_IMAGES, "method=finetune", "method.personalisation.epochs=2", "method.personalisation.saves=2"],
        {"round", "personalisation/id_accuracy", "personalisation/valid_accuracy"},
        {"accuracy/ALL"},
    ),
    "probe": (
        [*DATA, "method=temperature_probe", "method.images=8", "method.boundary_images=8", "model.hidden=[8]"],
        {"temperature", "gradients.norm"},
        set(),
    ),
    "distance": (
        ["task=gaussians", "task.samples=12", "method.fedwad.support=3", "method.fedwad.iterations=2"],
        {"iteration", "value", "sum"},
        {"value", "exact", "closed_form"},
    ),
    "matrix": ([*DATA, "method=dataset_distance"], {"first", "second", "distance"}, {"pairs"}),
    "coreset": ([*CORESET, "method=coreset", "method.participants=2"], {"epoch", "loss"}, {"distance/ALL"}),
    "knn": ([*CORESET, "method=coreset_knn"], {"client", "loss"}, {"accuracy/ALL"}),
}


class Mirror:
    """What a wandb run would be sent."""

    def __init__(self) -> None:
        self.rows, self.summary, self.codes, self.steps = [], {}, [], {}

    def log(self, row):
        self.rows.append(row)

    def define_metric(self, key, step_metric=None):
        assert key not in self.steps and step_metric in {None, *self.steps}
        self.steps[key] = step_metric

    def finish(self, exit_code):
        self.codes.append(exit_code)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_is_mirrored(tmp_path, monkeypatch, kind):
    begun, told = [], {}
    monkeypatch.setattr(wandb, "init", lambda **settings: told.update(settings) or begun.append(Mirror()) or begun[-1])
    command, in_rows, in_summary = RUNS[kind]
    assert main([*command, f"paths.out={tmp_path}", "tracker=wandb"]) == 0
    (mirror,) = begun
    assert mirror.codes == [0]
    assert in_rows <= {key for row in mirror.rows for key in row}
    assert in_summary <= set(mirror.summary)
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert told["job_type"] == result.get("kind", "distillation") and told["tags"] == [result["task"], result["method"]]
    assert told["config"] == json.loads(json.dumps(yaml.safe_load((path.parent / "config.yaml").read_text())))
    assert mirror.summary["status"] == "done"
    key, step = STEPS.get(kind, ("distance", None))
    assert mirror.steps.get(key) == step and (step is None or mirror.steps[step] is None)
    for key in in_summary:
        measure, _, data = key.partition("/")
        assert mirror.summary[key] == (result["metrics"][measure][data] if data else result[measure])


def test_a_mistake_begins_no_mirror(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "init", lambda **settings: pytest.fail("begun"))
    assert main([*TINY, f"paths.out={tmp_path}", "tracker=wandb", "task.source=local", "paths.data=nowhere"]) == 2
