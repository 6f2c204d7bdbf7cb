"""wandb mirrors a run and never takes it down: offline for real, failures through a fake of the service."""

import json

import pytest
import wandb

from knot_runner.cli.main import main
from tests.tiny import TINY


def result(folder):
    (path,) = folder.glob("*/*/*/result.json")
    content = json.loads(path.read_text())
    del content["seconds"], content["digest"]
    return content, path.parent


@pytest.mark.thorough
def test_an_offline_mirror_changes_nothing_in_the_records(tmp_path):
    assert main([*TINY, f"paths.out={tmp_path / 'plain'}"]) == 0
    assert main([*TINY, f"paths.out={tmp_path / 'mirrored'}", "tracker=wandb"]) == 0
    plain, mirrored = result(tmp_path / "plain"), result(tmp_path / "mirrored")
    assert plain[0] == mirrored[0]
    assert plain[1].name == mirrored[1].name
    assert list(mirrored[1].glob("wandb/offline-run-*/*.wandb"))
    assert wandb.run is None


class FakeRun:
    """Records what a run would send; ``log`` fails from the second row on."""

    def __init__(self):
        self.rows, self.summary, self.finished = [], {}, []

    def log(self, row):
        if self.rows:
            raise ConnectionError("service is gone")
        self.rows.append(row)

    def define_metric(self, key, step_metric=None):
        pass

    def finish(self, exit_code):
        self.finished.append(exit_code)


@pytest.mark.thorough
def test_a_mirror_that_fails_is_said_once_and_left_behind(tmp_path, monkeypatch, capsys):
    fake = FakeRun()
    monkeypatch.setattr(wandb, "init", lambda **settings: fake)
    assert main([*TINY, f"paths.out={tmp_path}", "tracker=wandb"]) == 0
    assert capsys.readouterr().err.count("wandb failed (service is gone)") == 1
    assert fake.rows[0]["round"] == 1


def test_a_mirror_that_does_not_start(tmp_path, monkeypatch, capsys):
    def refuse(**settings):
        assert settings["group"] == "sa/sinkhorn_e" and settings["resume"] == "allow" and len(settings["id"]) == 12
        raise wandb.errors.CommError("no server")

    monkeypatch.setattr(wandb, "init", refuse)
    assert main([*TINY, f"paths.out={tmp_path}", "tracker=wandb"]) == 0
    assert "wandb did not start (no server)" in capsys.readouterr().err


def test_a_run_that_ends_badly_is_finished_too(tmp_path, monkeypatch):
    fake = FakeRun()
    monkeypatch.setattr(wandb, "init", lambda **settings: fake)
    assert main([*TINY, f"paths.out={tmp_path}", "tracker=wandb", "training.local.lr=1e30"]) == 1
    assert len(fake.finished) == 1
