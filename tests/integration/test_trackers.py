"""Trackers mirror runs: with fakes of their packages, with wandb offline, and in TensorBoard's files."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest
import yaml

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.config.settings.groups import TrackerSettings
from knot_runner.engine.tracker import TRACKERS, TrackedRun, Tracker, counting_keys, flat, points
from knot_runner.results import RunResult
from knot_runner.util import processes
from tests.changed_settings import built
from tests.fake_trackers import fake_tensorboard, fake_wandb
from tests.golden.messages import refuses
from tests.runs import run
from tests.tiny import EXAMPLES, TINY, TINY_IMAGES

ROWS = [{"round": 0, "accuracy": 0.25, "who": "a"}, {"round": 1, "accuracy": 0.5, "loss": float("nan"), "spent": None}]
RESULT = RunResult(status="done", task="", method="", seed=3, kind="", metrics={"accuracy": {"ALL": 0.5}})


def tracked(folder, name, family="federated", **spec):
    config = {"seed": 3, "training": {"lr": 0.1}, "plugins": []}
    settings = built(TrackerSettings, "base/tracker.yaml", name=name, tags=["mine", "fedavg"], **spec)
    return TrackedRun(settings, config, folder, "abc", "femnist", "fedavg", 3, family)


def mirrored(tracked_run, rows=ROWS, result=RESULT):
    """Mirror ``rows`` and ``result``; return the tracker's notes."""
    reported, actions = [], list(processes._signal_actions)
    with Tracker(tracked_run, reported.append) as tracker:
        for row in rows:
            tracker.log(row)
        if result is not None:
            tracker.finish(result)
    assert processes._signal_actions == actions  # none stays for a signal that comes later
    return reported


def test_counting_keys_finds_the_nearest_counter():
    row = flat({"round": 1, "loss": 2.0, "local A": {"epoch": 4, "loss": 3.0}, "x": {"y": {"z": True}}})
    steps = counting_keys(row)
    assert steps == {"loss": "round", "local A/loss": "local A/epoch", "x/y/z": "round"}
    assert list(points(row, steps, 9)) == [("loss", 2.0, 1), ("local A/loss", 3.0, 4)]
    assert counting_keys({"first": "a", "distance": 1.0}) == {}
    assert list(points({"first": "a", "distance": 1, "bad": float("inf")}, {}, 9)) == [("distance", 1.0, 9)]
    assert flat({"a": {"b": 1, "c": {"d": 2}}}, ".") == {"a.b": 1, "a.c.d": 2}


def test_tracker_group_defaults_to_preset(tmp_path):
    job = compose_all(["experiment=federated/privacy_femnist", "tracker=wandb"])[0][0]
    (named,), _ = compose_all([*job.overrides, "tracker.group=mine"])
    (none,), _ = compose_all([one for one in job.overrides if not one.startswith("tracker")])
    assert job.settings.tracker.group == "federated/privacy_femnist" and named.settings.tracker.group == "mine"
    assert none.settings.tracker.name == "none" and job.run_id == named.run_id == none.run_id
    assert compose_all(["tracker=wandb"])[0][0].settings.tracker.group is None
    assert tracked(tmp_path, "wandb", group="mine").group == "mine"
    plain = tracked(tmp_path, "wandb")
    assert (plain.group, plain.tags, plain.name) == ("femnist/fedavg", ["femnist", "fedavg", "mine"], "fedavg-seed3")


def test_unknown_tracker_is_refused(tmp_path):
    with refuses():
        compose_all(["tracker=wandb", "tracker.name=wandbb"])
    with refuses():
        Tracker(tracked(tmp_path, "lines"), print)


def test_tracker_refuses_missing_package_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with refuses():
        run(tmp_path, *TINY_IMAGES, "tracker=tensorboard")
    assert not list(tmp_path.glob("*/*/*/rounds.jsonl"))


def test_wandb_tracker_mirrors_rows_and_results(tmp_path, monkeypatch):
    begun = fake_wandb(monkeypatch)
    made = run(tmp_path, *TINY, "tracker=wandb")
    (mirror,), result = begun, made.result
    told = mirror.settings
    assert mirror.codes == [0] and mirror.summary["status"] == "done"
    assert {"local Cell/loss", "pretrain Food/valid", "loss"} <= {key for row in mirror.rows for key in row}
    assert told["job_type"] == result.get("kind", "distillation") and told["tags"] == [result["task"], result["method"]]
    assert (told["resume"], told["id"]) == ("allow", made.folder.name)
    assert told["config"] == json.loads(json.dumps(yaml.safe_load((made.folder / "config.yaml").read_text())))
    assert (mirror.steps["local Cell/loss"], mirror.steps["local Cell/epoch"]) == ("local Cell/epoch", None)
    assert mirror.summary["f1/ALL"] == result["metrics"]["f1"]["ALL"]
    assert mirror.summary["selected_epoch"] == result["selected_epoch"]


@pytest.mark.parametrize(("words", "exit_code", "codes"), [
    (["training.local.lr=1e30"], 1, [0]), (["task.source=local", "paths.data_dir=nowhere"], 2, []),
], ids=["a run that diverges", "a mistake"])  # fmt: skip
def test_tracker_closes_after_failed_run(tmp_path, monkeypatch, words, exit_code, codes):
    begun = fake_wandb(monkeypatch)
    assert main([*TINY, f"paths.output_dir={tmp_path}", "tracker=wandb", *words]) == exit_code
    assert [code for mirror in begun for code in mirror.codes] == codes


def test_tracker_is_closed_as_failed_after_an_exception(tmp_path, monkeypatch):
    begun = fake_wandb(monkeypatch)
    with contextlib.suppress(InterruptedError), Tracker(tracked(tmp_path, "wandb"), print) as tracker:
        tracker.log(ROWS[0])
        raise InterruptedError
    assert begun[0].codes == [1]


@pytest.mark.parametrize("broken", ["begin", "log", "summarize", "close"])
def test_failing_tracker_is_not_called_again(broken, tmp_path):
    calls = []

    def called(name):
        calls.append(name)
        if name == broken:
            raise ConnectionError("the service is gone")

    def begin(run):
        called("begin")
        return SimpleNamespace(**{name: lambda *_, name=name: called(name) for name in ("log", "summarize", "close")})

    TRACKERS["recorder"] = begin
    (note,) = mirrored(tracked(tmp_path, "recorder"))
    whole = ["begin", "log", "log", "summarize", "close"]
    assert "the service is gone" in note and calls == whole[: whole.index(broken) + 1]


def test_tracker_added_to_a_finished_run_is_reported(fedavg_run, capsys):
    words = [*TINY_IMAGES, "method=fedavg", "training.lr=0.1", f"paths.output_dir={fedavg_run.folder.parents[2]}"]
    assert main([*words, "tracker=wandb"]) == 0
    assert capsys.readouterr().err.count("tracker=wandb does not show 1 run that finished without it") == 1


@pytest.mark.thorough
def test_wandb_offline_mirror_leaves_records_unchanged(tmp_path, knot_run):
    mirrored_run = run(tmp_path, *TINY, "tracker=wandb")
    assert mirrored_run.result == knot_run.result and mirrored_run.folder.name == knot_run.folder.name
    assert list(mirrored_run.folder.glob("wandb/offline-run-*/*.wandb"))
    assert sys.modules["wandb"].run is None


def test_plugin_tracker_receives_the_whole_run(tmp_path):
    own = [f"--config-dir={EXAMPLES / 'conf'}", f"plugins=['{EXAMPLES / 'own_tracker.py'}']", "tracker=lines"]
    assert main([*own, *TINY_IMAGES, "seed=7", f"paths.output_dir={tmp_path}"]) == 0
    (folder,) = tmp_path.glob("femnist/fedavg/*")
    lines = (folder / "lines.txt").read_text().splitlines()
    assert lines[0] == f"begin {folder.name} federated femnist/fedavg femnist fedavg mine 7"
    rounds = [line.split() for line in lines if line.startswith("round ") and " accuracy " in line]
    assert [row[1] for row in rounds] == ["1", "2", "3"]
    assert lines[-2] == f"end done {rounds[-1][3]}" and lines[-1] == "closed"


def test_tensorboard_tracker_logs_steps_and_final_numbers(tmp_path, monkeypatch):
    made = fake_tensorboard(monkeypatch)
    assert mirrored(tracked(tmp_path, "tensorboard"), [{"round": 5, "accuracy": 0.1}, *ROWS]) == []
    assert mirrored(tracked(tmp_path, "tensorboard", "distillation"), [{"a": 1.5}, {"a": 2.5}], None) == []
    writer, without_steps = made
    assert writer.folder == str(tmp_path / "tensorboard")
    assert writer.given("add_scalar") == [("accuracy", 0.1, 5), ("accuracy", 0.25, 0), ("accuracy", 0.5, 1)]
    final = ({"seed": 3, "training.lr": 0.1}, {"final/seed": 3.0, "final/threads": 1.0, "final/accuracy/ALL": 0.5})
    assert writer.given("add_hparams") == [final] and writer.calls[-1] == ("close",)
    assert "    seed: 3\n" in {name: text for name, text, _ in writer.given("add_text")}["config"]
    assert without_steps.given("add_scalar") == [("a", 1.5, 0), ("a", 2.5, 1)]


def test_files_of_tensorboard_hold_what_was_mirrored(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert mirrored(tracked(tmp_path, "tensorboard")) == []
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [(0, 0.25), (1, 0.5)]
    assert events.Scalars("final/accuracy/ALL")[0].value == 0.5
