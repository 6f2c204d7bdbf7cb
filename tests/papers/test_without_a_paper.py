"""The program and the other tests work without the folder of a paper, and the program without all of them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted(path.parent.name for path in ROOT.glob("knot_runner/papers/*/__init__.py"))
FOLDERS = (".ci", "conf", "docs", "knot_runner", "scripts", "tests")
LISTED = """import pathlib, knot_runner.cli.verbs.reproduce as reproduce
assert all(pathlib.Path(f"conf/experiment/{one.preset}.yaml").is_file() for one in reproduce.listed_presets())"""
COMMANDS = ("ls", "check experiment=federated/fedprox --quick", "method=fedavg task=femnist training=quick")
#: Tests that name presets, read all of conf/, or use the tables that papers add to.
SELECTED = (
    "tests/unit/report", "tests/unit/results", "tests/unit/composing/test_compose.py", "tests/unit/config",
    "tests/unit/test_imports.py", "tests/oracles/test_published.py", "tests/integration/test_filled_in.py",
    "tests/cli/test_command_line.py", "tests/cli/test_preset_folders.py", "tests/cli/test_key_reference.py",
    "tests/cli/test_readme.py::test_experiment_guide_lists_every_preset_once_and_papers_first",
)  # fmt: skip


@pytest.fixture
def root() -> Iterator[Path]:
    """A copy of the project, beside the folders of tests, whose names recorded messages leave out."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for path in ROOT.glob("*.*"):
            if path.is_file():
                shutil.copy(path, copy)
        yield copy


def python(root: Path, *arguments: str) -> None:
    """Run Python on the copy in ``root`` with ``arguments``; print what it prints if it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables["PYTHONPATH"] = str(root)
    done = subprocess.run([sys.executable, *arguments], cwd=root, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


@pytest.mark.thorough
@pytest.mark.parametrize("paper", [*PAPERS, "*"])
def test_program_works_without_a_paper_and_guides(root, paper):
    """It reads no Markdown at run time."""
    delete(root, paper)
    for path in root.rglob("*.md"):
        path.unlink()
    python(root, "-c", LISTED)
    for command in COMMANDS:
        python(root, "-m", "knot_runner", *command.split())


@pytest.mark.thorough
@pytest.mark.parametrize("paper", PAPERS)
def test_other_tests_are_collected_without_a_paper(root, paper):
    delete(root, paper)
    python(root, "-m", "pytest", "--collect-only", "tests")


@pytest.mark.thorough
def test_other_tests_pass_without_papers(root):
    delete(root, "*")
    python(root, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not thorough", *SELECTED)


def delete(root: Path, paper: str) -> None:
    """Delete the folders of ``paper``, or of all papers if it is ``*``."""
    for name in PAPERS if paper == "*" else [paper]:
        for folder in ("knot_runner/papers", "conf/experiment", "tests/papers"):
            shutil.rmtree(root / folder / name, ignore_errors=folder == "tests/papers")  # kd has no tests there
