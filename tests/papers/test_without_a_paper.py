"""The program works without the folder of a paper, and without all of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted(path.parent.name for path in ROOT.glob("knot_runner/papers/*/__init__.py"))
COMMANDS = ("ls", "check experiment=federated/fedprox --quick", "method=fedavg task=femnist training=quick")


@pytest.mark.thorough
@pytest.mark.parametrize("paper", [*PAPERS, "*"])
def test_program_works_without_a_paper(tmp_path, paper):
    for folder in ("knot_runner", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PAPERS if paper == "*" else [paper]:
        shutil.rmtree(tmp_path / "knot_runner" / "papers" / name)
        shutil.rmtree(tmp_path / "conf" / "experiment" / name)
    for command in COMMANDS:
        subprocess.run([sys.executable, "-m", "knot_runner", *command.split()], cwd=tmp_path, check=True)
