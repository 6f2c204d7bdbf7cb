"""Every command in README is run: the two set-up blocks by .ci/run, the others here."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from knot_runner.cli import main

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
#: Tasks whose commands are run as written but for shorter training: what is on the embedded digits runs for all.
RUN_HERE = {"femnist", "cifar10", "mnist", "mnist_fedwad", "gaussians"}
USES = [line for line in BLOCKS[2].splitlines() if line.strip()]


def test_the_first_two_blocks_are_those_that_ci_runs():
    assert BLOCKS[0].endswith("&& .venv/bin/knot-runner\n")
    assert BLOCKS[1].endswith("&& .venv/bin/python -m pytest -n 2 --dist worksteal\n")  # both cores
    assert "readme_command 1" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("line", USES)
def test_commands_compose_and_name_what_there_is(line, tmp_path, capsys):
    """Runs are composed by ``check`` (test_presets and test_cli run their kind); reports exist for their preset."""
    program, *arguments = shlex.split(line)
    assert program == "knot-runner"
    tasks = {a.removeprefix("task=") for a in arguments[:2] if a.startswith("task=")}
    if tasks & RUN_HERE and not {"plot", "table"} & {arguments[0]} and "experiment" not in line:
        short = [] if tasks == {"gaussians"} else ["training.rounds=1", "training.epochs=5"]
        assert main([*arguments, *short, "hardware.workers=1", f"paths.out={tmp_path}"]) == 0
        return
    if arguments[:2] == ["plot", "partition"]:
        assert main([*arguments, f"paths.out={tmp_path}"]) == 0
        return
    if arguments[0] in ("table", "plot"):
        verb, preset = arguments[:2]
        assert main([verb, preset, "paths.out=/nonexistent", *arguments[2:]]) == 2
        assert f"knot-runner experiment={preset}" in capsys.readouterr().err  # known, only not run yet
        return
    ready = arguments if arguments[0] == "ls" else ["check", "--no-estimate", *arguments[arguments[0] == "check" :]]
    assert main(ready) == 0


def test_the_commands_on_sweeps_run_one_after_another(tmp_path):
    for line in BLOCKS[3].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "knot-runner"
        done = subprocess.run(
            [sys.executable, "-m", "knot_runner", *arguments, f"paths.out={tmp_path}"], capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "reports" / "chill_table1.html").exists() and (tmp_path / "claims" / "chill_table1.md").exists()


@pytest.mark.parametrize("line", BLOCKS[-1].splitlines())
def test_benchmarks_run(line, tmp_path):
    _, script, *arguments = shlex.split(line)
    small = ["task.limit=60", "model.hidden=16", "model.layers=1"] if "pipeline" in arguments else []
    done = subprocess.run(
        [sys.executable, ROOT / script, *arguments, *small], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert any(word in done.stdout for word in ("engine", "newton", "published", "fused"))


def test_the_python_example_runs():
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    value, server_only, first, last = map(float, done.stdout.split())
    assert 0.9 < server_only / value < 1 and value <= last < first
