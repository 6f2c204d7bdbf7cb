"""Hydra's own keys, and its launchers: what is honoured, what is refused, and that jobs are composed once."""

import json

import pytest
from omegaconf import OmegaConf

from knot_runner.cli import main as cli
from knot_runner.composing.commands import compose_all
from knot_runner.composing.hydra_keys import check_hydra
from knot_runner.sweeps import task
from knot_runner.sweeps.plan import new_plan, read_plan, write_plan
from knot_runner.util.errors import UserError
from tests.test_command_line import refusal
from tests.tiny import TINY_IMAGES

NOT_HONOURED = {
    "hydra.run.dir=x": "paths.out=DIR", "hydra.sweep.dir=x": "paths.out=DIR", "hydra.sweep.subdir=x": "paths.out=DIR",
    "hydra.job.chdir=true": "the folder and the environment of the command", "hydra.job.env_set.A=1": "environment",
    "hydra.verbose=true": "log.txt", "hydra.mode=MULTIRUN": "-m", "hydra.searchpath=[file:///x]": "--config-dir=DIR",
    "hydra/callbacks=x": "plugins=[FILE.py]", "+hydra.callbacks.x.y=1": "plugins=[FILE.py]", "~hydra.callbacks": "plu",
    "hydra/job_logging=default": "log.txt", "hydra/sweeper=basic": "max_batch", "hydra.output_subdir=x": "config.yaml",
    "hydra/launcher=glob(*)": "one launcher", "hydra/launcher=1.5": "hydra/launcher=NAME",
    "hydra.nope=1": "hydra/launcher", "hydra.launcher._target_=os.system": "plugins=[FILE.py]",
}  # fmt: skip


@pytest.mark.parametrize("argument", NOT_HONOURED)
def test_hydras_own_keys_that_are_not_honoured_are_refused_by_name(argument):
    said = refusal(argument)
    assert said.startswith(argument.lstrip("+~").partition("=")[0]) and NOT_HONOURED[argument] in said


def test_the_launcher_and_its_settings_are_honoured():
    _, (command,) = compose_all(["hydra/launcher=fused", "hydra.launcher.together=3", "hydra.sweeper.max_batch_size=2"])
    assert command.sweep and command.hydra.launcher.together == 3 and command.hydra.sweeper.max_batch_size == 2
    _, (command,) = compose_all(["seed=3"])
    assert not command.sweep


@pytest.mark.parametrize(
    ("key", "value"),
    [("callbacks", {"x": {"a": 1}}), ("verbose", True), ("mode", "RUN"), ("job.env_set", {"A": "1"}), ("run.dir", "x"),
     ("job.chdir", True), ("sweep.subdir", "x"), ("job_logging", {}), ("launcher._target_", "os.system"),
     ("launcher.x", {"_target_": "os.system"}), ("launcher.x", [{"_target_": "os.system"}])],
)  # fmt: skip
def test_no_part_of_hydras_config_is_other_than_it_may_be(key, value):
    _, (command,) = compose_all([])
    hydra = OmegaConf.create(OmegaConf.to_container(command.hydra))
    check_hydra(hydra)
    OmegaConf.update(hydra, key, value, merge=False)
    with pytest.raises(UserError, match=r"hydra\." + key.split(".")[0]):
        check_hydra(hydra)


def test_a_yaml_edited_under_a_sweep_changes_no_later_job(tmp_path, monkeypatch):
    mine = tmp_path / "method" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("defaults:\n  - fedprox\n  - _self_\nname: mine\nmu: 0.5\n")
    found = []

    def run(job, plan):
        found.append((job.settings.seed, job.method.mu, plan.folder.parent.parent))
        mine.write_text("defaults: [\n")
        return task.outcome("none", "failed", False, 0.0)

    monkeypatch.setattr(task, "run_in_process", run)
    sweep = ["-m", f"--config-dir={tmp_path}", *TINY_IMAGES, "method=mine", "seed=0,1", f"paths.out={tmp_path / 'out'}"]
    assert cli.main(sweep) == 1
    assert found == [(0, 0.5, tmp_path / "out"), (1, 0.5, tmp_path / "out")]


def test_the_plan_keeps_configs_exactly(tmp_path):
    config = {"labels": {1: "low", 2.5: "x", "3": None, False: [1, 1e-3, {"a": {5: "b"}}]}, "seed": 0, "text": "ü\n"}
    plan = new_plan(tmp_path, False, None)
    write_plan(plan, {"abc": config})
    assert read_plan(plan.path).config("abc") == config
    assert json.loads((plan.folder / "jobs" / "abc.json").read_text())
    with pytest.raises(UserError, match="other.json: is not there or damaged"):
        plan.config("other")
