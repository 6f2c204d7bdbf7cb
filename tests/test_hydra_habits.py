"""What a user of Hydra types out of habit: each works as there, or is refused by name with what to type instead."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
import yaml

import knot_runner
from knot_runner.cli import hydra_flags
from knot_runner.cli.hydra_flags import complete_shell, suggestions
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.composing.flags import INFO, LONG, NOT_HONOURED, joined_flags, usual_overrides
from knot_runner.util.errors import UserError
from tests.tiny import TINY_IMAGES


def shown(capsys, *arguments):
    """What a command prints, which runs nothing."""
    assert main(list(arguments)) == 0
    return capsys.readouterr()


# -------------------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["-c", "job"], ["--cfg=job"]),
        (["--cfg", "all", "seed=1"], ["--cfg=all", "seed=1"]),
        (["-c", "job", "-p", "model", "--resolve"], ["--cfg=job", "--package=model", "--resolve"]),
        (["-cd", "a=b", "ls"], ["--config-dir=a=b", "ls"]),
        (["--config-dir=x", "-m"], ["--config-dir=x", "-m"]),
        (["--config-dir"], ["--config-dir"]),
        (["--info", "seed=1"], ["--info", "seed=1"]),
        (["-i", "defaults", "seed=1"], ["--info=defaults", "seed=1"]),
        (["-sc", "query=bash"], ["--shell-completion=query=bash"]),
        (["task=sa", "--stale=rerun", "--", ""], ["task=sa", "--stale=rerun", "--", ""]),
    ],
)
def test_a_flag_and_its_value_are_one_word(typed, read):
    assert joined_flags(typed) == read
    assert joined_flags(read) == read


@pytest.mark.parametrize("flag", [*NOT_HONOURED, "-cn", "-cp", "-r"])
def test_a_flag_that_is_not_honoured_is_refused_with_what_is_right(flag, capsys):
    assert main(["task=femnist", flag, "x"]) == 2
    name = LONG.get(flag, flag)
    assert capsys.readouterr().err == f"knot-runner: {name}: is not honoured; {NOT_HONOURED[name]}\n"


def test_the_version_and_hydras_help(capsys):
    assert shown(capsys, "--version").out == f"knot-runner {knot_runner.__version__}\n"
    said = shown(capsys, "--hydra-help", "task=femnist").out
    assert all(flag in said for flag in ("--cfg", "--info", "--config-dir", "--shell-completion", "+experiment=NAME"))


def test_plus_experiment_and_without_a_tracker():
    assert usual_overrides(["+experiment=a", "++experiment=b", "~tracker", "~tracker=wandb", "+x.experiment=1"]) == [
        "experiment=a", "experiment=b", "tracker=none", "~tracker=wandb", "+x.experiment=1",
    ]  # fmt: skip
    jobs, (command,) = compose_all(["+experiment=fedwad_toy", "~tracker"])
    usual, (other,) = compose_all(["experiment=fedwad_toy", "tracker=none"])
    assert [job.run_id for job in jobs] == [job.run_id for job in usual] and jobs[0].settings.tracker.name == "none"
    assert command.preset == other.preset == "fedwad_toy"


# ------------------------------------------------------------------------------------------------- the composed config


def test_the_config_is_shown_as_the_run_would_record_it(tmp_path, capsys):
    """Choices that fit task and method together are in it; nothing is written."""
    words = ["task=sa", "method=fedavg", "partition=natural", f"paths.out={tmp_path / 'out'}"]
    (job,), _ = compose_all(words)
    assert yaml.safe_load(shown(capsys, *words, "--cfg", "job", "--resolve").out) == job.config
    said = shown(capsys, *words, "-c", "job", "-p", "training")
    assert said.out.startswith("# @package training\nname: texts\n") and said.err.count("training=texts") == 1
    assert list(tmp_path.iterdir()) == []


def test_interpolations_stay_unless_they_are_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("MY_OUT", "elsewhere")
    words = ["task=gaussians", "paths.out=${oc.env:MY_OUT}"]
    assert shown(capsys, *words, "-c", "job", "-p", "paths").out.endswith("out: ${oc.env:MY_OUT}\n")
    assert shown(capsys, *words, "-c", "job", "-p", "paths.out", "--resolve").out == "elsewhere\n"
    whole = yaml.safe_load(shown(capsys, *words, "-c", "all").out)
    assert {"hydra", "method", "task"} <= set(whole)
    assert set(yaml.safe_load(shown(capsys, *words, "-c", "hydra").out)) == {"hydra"}


def test_of_a_grid_the_first_job_is_shown(capsys):
    said = shown(capsys, "-m", "task=gaussians", "seed=3,4", "-c", "job", "-p", "seed")
    assert said.out == "3\n" and "the first of 2 jobs" in said.err


def test_a_presets_claims_are_in_its_config(capsys):
    (_, *_), (command,) = compose_all(["experiment=fedwad_toy"])
    claims = command.jobs[0].config["report"]["claims"]
    assert (
        claims and yaml.safe_load(shown(capsys, "experiment=fedwad_toy", "-c", "job").out)["report"]["claims"] == claims
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c"], "--cfg: without a value: --cfg job, hydra or all is right"),
        (["-c", "jobs"], "--cfg: jobs: --cfg job, hydra or all is right"),
        (["--info=x"], "--info: there is no 'x' (there is: all"),
        (["-c", "job", "--info"], "--cfg and --info: one of them is right"),
        (["-p", "model"], "--package: goes with --cfg, as in --cfg job --package KEY"),
        (["--resolve"], "--resolve: goes with --cfg, as in --cfg job --resolve"),
        (["-c", "job", "-p", "nope"], "--package: the composed config has nothing under 'nope'"),
        (["-c", "job", "--package="], "--package: without a value; --package KEY is right"),
        (["-c", "job", "task=femist"], "task=femist: there is no such task (did you mean 'femnist'?)"),
        (["-sc", "x=bash"], "--shell-completion: install=SHELL or uninstall=SHELL is right"),
        (["-sc", "install=tcsh"], "--shell-completion: install=SHELL or uninstall=SHELL is right"),
    ],
)
def test_a_flag_that_is_not_right_is_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"knot-runner: {said}")


def test_hydra_says_how_it_composes(capsys, monkeypatch):
    monkeypatch.setattr(hydra_flags.logging.getLogger(), "handlers", handlers := [])
    said = shown(capsys, "task=sa", "method=fedavg", "partition=natural", "--info", "defaults").out
    assert "training/texts" in said and "training/small" not in said
    assert hydra_flags.logging.getLogger().handlers is handlers and "searchpath" in INFO


# --------------------------------------------------------------------------------------------------------------- globs


@pytest.mark.thorough
def test_a_glob_leaves_out_what_does_not_have_a_key_that_was_typed(capsys):
    jobs, _ = compose_all(["task=femnist", "method=fedavg", "training=glob(include=[quick,kd])", "training.epochs=1"])
    assert {job.settings.training.name for job in jobs} == {"quick"}
    with pytest.raises(UserError, match="none fits; training.ronds: there is no such setting .did you mean 'rounds'"):
        compose_all(["task=femnist", "method=fedavg", "training=glob(include=[quick,kd])", "training.ronds=1"])


# ---------------------------------------------------------------------------------------------------------- completion


def test_what_a_word_may_become(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "fedmine.yaml").write_text("name: fedmine\n")
    assert suggestions("tab") == ["table"]
    assert suggestions("task=femn") == ["task=femnist"]
    assert suggestions("-m task=femnist method=fedavg,fedpro") == ["method=fedavg,fedprox"]
    assert suggestions(f"-cd {tmp_path} method=fedmi") == ["method=fedmine"]
    assert suggestions("table knot_table1") == ["knot_table1"] and "table" not in suggestions("check ")
    assert suggestions("ls meth") == suggestions("ls task meth") == ["method"]
    assert suggestions("task=femnist method=fedavg training.rou") == ["training.rounds="]
    assert suggestions("task=femnist method=fedavg training.rounds=") == ["training.rounds=300"]
    assert "task=" in suggestions("") and "hydra/launcher=" in suggestions("hyd")
    assert suggestions("hydra/launcher=fu") == ["hydra/launcher=fused"]
    assert suggestions(f"paths.data={tmp_path}/m") == [f"paths.data={tmp_path}/method"]
    assert suggestions("--vers") == ["--version"]
    assert suggestions("task=nowhere see") == [] == suggestions("seed='")


def test_nothing_is_suggested_that_a_shell_would_expand():
    before = """tracker=wandb tracker.group=a "tracker.project='\\$(touch x)'" """
    assert suggestions(f"{before} tracker.group=") == ["tracker.group=a"]
    assert suggestions(f"{before} tracker.project=") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_and_forgets(tmp_path, capsys):
    script = shown(capsys, "-sc", "install=bash").out
    (tmp_path / "knot-runner").write_text("#!/bin/sh\n[ \"$*\" = '-sc query=bash' ] && echo seed=3 task=sa task=erc\n")
    (tmp_path / "knot-runner").chmod(0o755)
    assert complete_shell(["uninstall=bash"]) == 0
    line = 'COMP_LINE="knot-runner task="; COMP_CWORD=1; hydra_bash_completion; echo "${COMPREPLY[@]}"; complete -p'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{line}\n{capsys.readouterr().out}\ncomplete -p"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words, *rules = done.stdout.splitlines()
    assert words == "task=sa task=erc" and "knot-runner" in "".join(rules)
    assert len([rule for rule in rules if "knot-runner" in rule]) == 1  # there once installed, gone at the end


@pytest.mark.parametrize(
    ("shell", "beginning"), [("zsh", "(( $+functions[compdef] )) ||"), ("fish", "function hydra_fish")]
)
def test_other_shells_have_a_script_of_their_own(shell, beginning, capsys, monkeypatch):
    assert shown(capsys, "-sc", f"install={shell}").out.startswith(beginning)
    assert "knot-runner" in shown(capsys, "-sc", f"uninstall={shell}").out
    monkeypatch.setenv("COMP_LINE", "knot-runner task=femn")
    assert shown(capsys, "-sc", f"query={shell}").out == "task=femnist\n"


# -------------------------------------------------------------------------------------------------------- a run, whole


def test_a_run_with_flags_and_overrides_as_in_hydra(tmp_path, capsys):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text("defaults: [quick, _self_]\nname: mine\n")
    words = [*TINY_IMAGES, "method=fedavg", "training=mine", "training.rounds=1", f"paths.out={tmp_path / 'out'}"]
    words = [word for word in words if word != "training.rounds=3"]
    assert main(["-cd", str(tmp_path), *words, "~tracker"]) == 0
    (config,) = tmp_path.glob("out/*/*/*/config.yaml")
    recorded = yaml.safe_load(config.read_text())
    assert recorded["training"]["name"] == "mine" and recorded["tracker"] == {"name": "none"}
    capsys.readouterr()
    told = yaml.safe_load(shown(capsys, "--config-dir", str(tmp_path), *words, "-c", "job", "--resolve").out)
    assert {key: told[key] for key in recorded} == recorded
