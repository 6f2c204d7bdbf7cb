"""Hydra's flags, keys and launchers: those that are supported work as in Hydra, others are refused by name."""

from __future__ import annotations

import pytest
import yaml

from knot_runner.cli import main as cli
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.composing.hydra_compose import Parser
from knot_runner.sweeps import task
from tests.cli.test_command_line import refusal
from tests.tiny import TINY_IMAGES


def shown(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr()


@pytest.mark.parametrize(("typed", "read"), [
    (["-cd", "a=b", "task=sa"], ["--config-dir=a=b"]),
    (["task=sa", "-cn", "study", "-m"], ["--config-name=study", "--multirun"]),
    (["--config-dir=x", "task=sa", "--multirun"], ["--config-dir=x", "--multirun"]),
])  # fmt: skip
def test_hydras_flags_are_passed_through(typed, read):
    options = Parser("", "").parse(typed)
    assert options.flags == read and options.words == ["task=sa"]


def test_cfg_flag_prints_config_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MY_OUT", str(tmp_path / "out"))
    words = ["task=sa", "method=fedavg", "partition=natural", "paths.output_dir=${oc.env:MY_OUT}", "seed=3,4"]
    job = yaml.safe_load(shown(capsys, *words, "-c", "job").out)
    assert job["training"]["name"] == "small" and job["training"]["optimizer"] == "adamw"
    assert job["seed"] == 3 and job["paths"]["output_dir"] == str(tmp_path / "out")
    whole = yaml.safe_load(shown(capsys, *words, "--cfg", "all").out)
    assert set(whole) == {"hydra", *job}
    assert set(yaml.safe_load(shown(capsys, *words, "--cfg=hydra").out)) == {"hydra"}
    assert list(tmp_path.iterdir()) == []


def test_config_name_chooses_the_main_file(tmp_path, capsys):
    text = "defaults:\n  - config\n  - override /task: femnist\n  - override /method: fedavg\n  - _self_\nseed: 7\n"
    (tmp_path / "study.yaml").write_text(text)
    own = [f"--config-dir={tmp_path}", "--config-name=study"]
    (job,), _ = compose_all([*own, "training.rounds=2"])
    assert (job.settings.seed, job.settings.task.name, job.settings.training.rounds) == (7, "femnist", 2)
    assert yaml.safe_load(shown(capsys, *own, "-c", "job").out)["seed"] == 7
    missing = refusal(f"--config-dir={tmp_path}", "--config-name=studie")
    assert missing == f"--config-name=studie: file not found: {tmp_path}/studie.yaml"
    (own_again,), _ = compose_all(["task=femnist", "method=fedavg", "seed=7", "training.rounds=2"])
    assert own_again.run_id == job.run_id


def test_launcher_and_its_settings():
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "hydra.sweeper.max_batch_size=2"]
    _, (command,) = compose_all(words)
    assert command.sweep and command.hydra.launcher.n_jobs == 3 and command.hydra.sweeper.max_batch_size == 2
    _, (command,) = compose_all(["seed=3"])
    assert not command.sweep


def test_sweep_ignores_yaml_edits_after_start(tmp_path, monkeypatch):
    mine = tmp_path / "method" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("defaults:\n  - fedprox\n  - _self_\nname: mine\nmu: 0.5\n")
    found = []

    def run(job, plan):
        found.append((job.settings.seed, job.method.mu, plan.folder.parent.parent))
        mine.write_text("defaults: [\n")
        return task.Outcome("none", "failed")

    monkeypatch.setattr(task, "run_in_process", run)
    flags = ["-m", f"--config-dir={tmp_path}", f"paths.output_dir={tmp_path / 'out'}"]
    assert cli.main([*flags, *TINY_IMAGES, "method=mine", "seed=0,1"]) == 1
    assert found == [(0, 0.5, tmp_path / "out"), (1, 0.5, tmp_path / "out")]


@pytest.mark.parametrize(("text", "line", "said"), [
    ("name: x\nmu: [1\n", 3, "expected ',' or ']'"), ("name: x\n\tmu: 1\n", 2, "found "),
    ("name: 'x\n", 2, "found unexpected end of stream"), ("name: x\nname: y\n", 2, "found duplicate key name"),
])  # fmt: skip
def test_yaml_error_names_file_and_line(text, line, said, tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(text)
    found = refusal(f"--config-dir={tmp_path}", "method=mine")
    assert found.startswith(f"{tmp_path}/method/mine.yaml:{line}: ") and said in found


def test_preset_and_launcher_of_a_user(tmp_path):
    for name in ("experiment", "hydra/launcher"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "mine.yaml").write_text("defaults: [joblib, _self_]\nn_jobs: 3\n")
    preset = "# @package _global_\ndefaults:\n  - override /hydra/launcher: mine\nsweep: {seed: '0,1'}\n"
    (tmp_path / "experiment" / "own.yaml").write_text(preset + "hydra: {sweeper: {max_batch_size: 5}}\n")
    jobs, (command,) = compose_all([f"--config-dir={tmp_path}", "experiment=own"])
    assert len(jobs) == 2 and command.hydra.launcher.n_jobs == 3 and command.hydra.sweeper.max_batch_size == 5
