"""Trackers beyond W&B, and what all of them are told: by fakes of their packages, and TensorBoard's files read back."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import TrackerSettings
from knot_runner.engine.tracker import TRACKERS, TrackedRun, Tracker, counting_keys, flat, points
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES

EXAMPLES = Path(__file__).parents[1] / "plugins"
ROWS = [{"round": 0, "accuracy": 0.25, "who": "a"}, {"round": 1, "accuracy": 0.5, "loss": float("nan")}]
RESULT = {"status": "done", "seconds": 3.5, "kind": "federated", "metrics": {"accuracy": {"ALL": 0.5}}}


def tracked(folder, name, family="federated", **spec):
    config = {"seed": 3, "training": {"lr": 0.1}, "plugins": []}
    settings = TrackerSettings(name, tags=["mine", "fedavg"], **spec)
    return TrackedRun(settings, config, folder, "abc", "femnist", "fedavg", 3, family)


def mirrored(run, rows=ROWS, result=RESULT):
    """What is said while ``rows`` and ``result`` are mirrored."""
    said = []
    with Tracker(run, said.append) as one:
        for row in rows:
            one.log(row)
        if result is not None:
            one.finish(result)
    return said


# ---------------------------------------------------------------------------------------------------------- all of them


def test_what_counts_a_number_is_beside_it_or_in_its_row():
    row = flat({"round": 1, "loss": 2.0, "local A": {"epoch": 4, "loss": 3.0}, "x": {"y": {"z": True}}})
    steps = counting_keys(row)
    assert steps == {"loss": "round", "local A/loss": "local A/epoch", "x/y/z": "round"}
    assert list(points(row, steps, 9)) == [("loss", 2.0, 1), ("local A/loss", 3.0, 4)]
    assert counting_keys({"first": "a", "distance": 1.0}) == {}
    assert list(points({"first": "a", "distance": 1, "bad": float("inf")}, {}, 9)) == [("distance", 1.0, 9)]
    assert flat({"a": {"b": 1, "c": {"d": 2}}}, ".") == {"a.b": 1, "a.c.d": 2}


def test_the_group_is_the_preset_unless_it_is_named(tmp_path):
    job = compose_all(["experiment=fedwad/toy", "tracker=wandb"])[0][0]
    (named,), _ = compose_all([*job.overrides, "tracker.group=mine"])
    (none,), _ = compose_all([one for one in job.overrides if not one.startswith("tracker")])
    assert job.settings.tracker.group == "fedwad/toy" and named.settings.tracker.group == "mine"
    assert none.config["tracker"] == {"name": "none"} and job.run_id == named.run_id == none.run_id
    assert compose_all(["tracker=wandb"])[0][0].settings.tracker.group is None
    assert tracked(tmp_path, "wandb", group="mine").group == "mine"
    run = tracked(tmp_path, "wandb")
    assert run.group == "femnist/fedavg" and run.tags == ["femnist", "fedavg", "mine"] and run.name == "fedavg-seed3"


def test_a_tracker_that_there_is_not_is_refused(tmp_path, capsys):
    with refuses():
        compose_all(["tracker=wandb", "tracker.name=wandbb"])
    with refuses():
        compose_all(["tracker=mlflow", "tracker.uri='http://me:secret@host'"])
    with refuses():
        Tracker(tracked(tmp_path, "lines"), print)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_package_that_is_not_installed_is_refused_before_the_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    assert main([*TINY_IMAGES, f"tracker={name}", f"paths.out={tmp_path}"]) == 2
    said = f"tracker={name}: its package is not installed. Run: pip install 'knot_runner[{name}]'"
    assert capsys.readouterr().err.splitlines()[-1] == f"knot-runner: {said}"
    assert not list(tmp_path.glob("*/*/*/rounds.jsonl"))


def test_a_mirror_that_fails_at_its_end_is_said_once(tmp_path, monkeypatch):
    calls = []

    class Bad:
        def __getattr__(self, name):
            calls.append(name)
            return lambda *_: (_ for _ in ()).throw(OSError("gone\nmore")) if name == "summarise" else None

    monkeypatch.setitem(TRACKERS, "bad", lambda run: Bad())
    assert mirrored(tracked(tmp_path, "bad")) == ["tracker: bad failed (gone); the local records go on without it"]
    assert calls == ["log", "log", "summarise"]


# ---------------------------------------------------------------------------------------------- one of a plug-in, whole


@pytest.fixture
def own_tracker():
    before = dict(TRACKERS.data)
    yield [f"--config-dir={EXAMPLES / 'conf'}", f"plugins=['{EXAMPLES / 'own_tracker.py'}']", "tracker=lines"]
    TRACKERS.data.clear()
    TRACKERS.data.update(before)
    sys.modules.pop("own_tracker", None)


@pytest.mark.thorough
def test_a_tracker_of_ones_own_is_told_of_the_whole_run(tmp_path, own_tracker, capsys):
    words = [*TINY_IMAGES, "seed=7", f"paths.out={tmp_path}"]
    assert main([*own_tracker, *words]) == 0, capsys.readouterr().err
    (folder,) = tmp_path.glob("femnist/fedavg/*")
    lines = (folder / "lines.txt").read_text().splitlines()
    assert lines[0] == f"begin {folder.name} federated femnist/fedavg femnist fedavg mine 7"
    rounds = [line.split() for line in lines if line.startswith("round ") and " accuracy " in line]
    assert [row[1] for row in rounds] == ["1", "2", "3"]
    assert lines[-2] == f"end done {rounds[-1][3]}" and lines[-1] == "closed"
    del TRACKERS["lines"], sys.modules["own_tracker"]


# ---------------------------------------------------------------------------------------------------------- TensorBoard


class FakeWriter:
    """As ``torch.utils.tensorboard.SummaryWriter``."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, *arguments))


def test_tensorboard_is_given_scalars_by_step_and_the_final_numbers(tmp_path, monkeypatch):
    made = []
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = lambda *a, **k: made.append(FakeWriter(*a, **k)) or made[-1]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: True)
    assert mirrored(tracked(tmp_path, "tensorboard"), [{"round": 5, "accuracy": 0.1}, *ROWS]) == []
    (writer,) = made
    assert writer.folder == str(tmp_path / "tensorboard")
    scalars = [call[1:] for call in writer.calls if call[0] == "add_scalar"]
    assert scalars == [("accuracy", 0.1, 5), ("accuracy", 0.25, 0), ("accuracy", 0.5, 1)]
    (final,) = [call[1:] for call in writer.calls if call[0] == "add_hparams"]
    assert final == ({"seed": 3, "training.lr": 0.1}, {"final/seconds": 3.5, "final/accuracy/ALL": 0.5})
    assert writer.calls[-1] == ("close",)
    texts = {call[1]: call[2] for call in writer.calls if call[0] == "add_text"}
    assert "    seed: 3\n" in texts["config"]
    assert mirrored(tracked(tmp_path, "tensorboard", "distillation"), [{"a": 1.5}, {"a": 2.5}], None) == []
    assert [call[1:] for call in made[1].calls if call[0] == "add_scalar"] == [("a", 1.5, 0), ("a", 2.5, 1)]


def test_tensorboards_files_hold_what_was_mirrored(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert mirrored(tracked(tmp_path, "tensorboard")) == []
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [(0, 0.25), (1, 0.5)]
    assert events.Scalars("final/accuracy/ALL")[0].value == 0.5


# --------------------------------------------------------------------------------------------------------------- MLflow


class FakeClient:
    """As ``mlflow.MlflowClient``; ``runs`` outlives it."""

    runs: dict = {}

    def __init__(self, tracking_uri):
        self.uri = tracking_uri

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name):
        assert name == "knot_runner" and self.uri == "file:x"
        return "7"

    def search_runs(self, experiments, condition, max_results):
        assert experiments == ["7"]
        return [run for run in self.runs.values() if condition == f"tags.`knot_runner.run_id` = '{run.id}'"]

    def create_run(self, experiment, run_name, tags):
        info = SimpleNamespace(run_id="m1")
        run = SimpleNamespace(id=tags["knot_runner.run_id"], info=info, name=run_name, tags=tags)
        run.params, run.metrics, run.states, run.batches = {}, [], [], []
        self.runs["m1"] = run
        return run

    def update_run(self, run_id, status):
        self.runs[run_id].states.append(status)

    def log_batch(self, run_id, metrics=(), params=()):
        self.runs[run_id].batches.append(len(params) + len(metrics))
        self.runs[run_id].metrics += [(one[0], one[1], one[3]) for one in metrics]
        self.runs[run_id].params |= dict(params)

    def set_tag(self, run_id, key, value):
        self.runs[run_id].tags[key] = value

    def set_terminated(self, run_id, status):
        self.runs[run_id].states.append(status)


@pytest.fixture
def mlflow_runs(monkeypatch):
    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.__spec__ = ModuleSpec("mlflow", None)
    package.MlflowClient = FakeClient
    entities.Metric = lambda *values: values
    entities.Param = lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(FakeClient, "runs", {})
    return FakeClient.runs


def test_mlflow_is_given_a_run_and_a_resumed_one_goes_on_in_it(tmp_path, mlflow_runs, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # what the user has set stays
    run = tracked(tmp_path, "mlflow", uri="file:x")
    run.config["long"] = {f"key:{number}": "x" * 600 for number in range(120)}
    assert mirrored(run, ROWS[:1], None) == []
    assert mirrored(run, ROWS[1:]) == []
    (one,) = mlflow_runs.values()
    assert one.name == "fedavg-seed3" and one.states == ["FINISHED", "RUNNING", "FINISHED"]
    assert one.tags["group"] == "femnist/fedavg" and one.tags["job_type"] == "federated" and one.tags["tag.mine"]
    assert (
        one.params["training.lr"] == "0.1" and one.params["long.key_7"] == "x" * 500 and one.params["plugins"] == "[]"
    )
    assert max(one.batches) == 100
    measured = [("accuracy", 0.25, 0), ("accuracy", 0.5, 1), ("final/seconds", 3.5, 0), ("final/accuracy/ALL", 0.5, 0)]
    assert one.metrics == measured and one.tags["status"] == "done"
