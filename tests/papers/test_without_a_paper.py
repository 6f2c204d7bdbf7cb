"""The program and the other tests work without the folder of a paper, and the program without all of them."""

import os
import re
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
#: Types commands, in a process of its own; the presets that are listed for reproduction must exist.
COMMANDS = """
import pathlib, sys
from knot_runner.cli.main import main
from knot_runner.cli.verbs.reproduce import listed_presets
assert all(pathlib.Path(f"conf/experiment/{one.preset}.yaml").is_file() for one in listed_presets())
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
"""
QUICK = ("ls", "check experiment=federated/fedprox --quick")
#: Tests that name presets, read all of conf/, or use the tables that papers add to.
SELECTED = (
    "page or claims or test_results or test_compose or test_imports_go_down_only or test_published or "
    "test_filled_in or test_fitting or test_bounds or test_strict or test_preset_folders or test_key_reference or "
    "test_experiment_guide_lists"
)


@pytest.fixture
def root() -> Iterator[Path]:
    """A copy of the project, beside the folders of tests, whose names recorded messages leave out."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info"))
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
def test_program_works_without_papers_and_guides(root: Path) -> None:
    """Each paper is deleted alone, and then all of them. The program reads no Markdown at run time."""
    for path in root.rglob("*.md"):
        path.unlink()
    places = [root / folder for folder in ("knot_runner/papers", "conf/experiment")]
    for paper in PAPERS:
        for place in places:
            (place / paper).rename(root / f"{place.name} {paper}")
        python(root, "-c", COMMANDS, *QUICK)
        for place in places:
            (root / f"{place.name} {paper}").rename(place / paper)
    delete_papers(root)
    python(root, "-c", COMMANDS, *QUICK, "method=fedavg task=femnist training=quick")


@pytest.mark.thorough
def test_other_tests_pass_without_papers(root: Path) -> None:
    """All other tests are collected, and those that papers could affect are run."""
    delete_papers(root)
    python(root, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not thorough", "-k", SELECTED)


def test_papers_depend_on_no_other_paper() -> None:
    """Neither their tests nor their presets do, so that the tests above cover each paper."""
    for paper in PAPERS:
        for path in ROOT.glob(f"tests/papers/{paper}/*.py"):
            used = re.findall(r"(?:knot_runner|tests)\.papers\.(\w+)", path.read_text())
            assert set(used) <= {paper, "sums"}, path
        for path in ROOT.glob(f"conf/experiment/{paper}/*.yaml"):
            assert set(re.findall(r"experiment/(\w+)/", path.read_text())) <= {paper}, path


def delete_papers(root: Path) -> None:
    for name in PAPERS:
        for folder in ("knot_runner/papers", "conf/experiment", "tests/papers"):
            shutil.rmtree(root / folder / name, ignore_errors=folder == "tests/papers")  # kd has no tests there
