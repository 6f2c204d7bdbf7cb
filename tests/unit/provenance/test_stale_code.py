"""The version of the code that made a result: what is part of it, and what another one means."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from knot_runner import provenance
from knot_runner.provenance import staleness
from tests.stale_records import result, settings
from tests.unit.test_imports import FLOORS, imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A copy of the package's sources, which code versions are then made of."""
    copy = tmp_path / "copy"
    shutil.copytree(staleness.PACKAGE_FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(staleness, "PACKAGE_FOLDER", copy)
    staleness.code_version.cache_clear()
    yield copy
    staleness.code_version.cache_clear()


def version() -> str:
    staleness.code_version.cache_clear()
    return staleness.code_version()


def test_code_version_is_of_what_can_change_numbers(package: Path) -> None:
    before = version()
    assert re.fullmatch(r"0\.1\.0\+[0-9a-f]{12}", before)
    for name in ("report/statistics/intervals.py", "cli/main.py", "composing/job.py", "engine/tracker.py",
                 "engine/tracker_services.py", "methods/knot.md", "provenance/staleness.py"):  # fmt: skip
        with (package / name).open("a") as file:
            file.write("# changed\n")
    (package / "conf").mkdir()
    (package / "conf/x.py").write_text("")  # a wheel has conf/ here, a checkout has not
    assert version() == before
    for name in ("metrics.py", "config/strict.py", "methods/knot.py", "engine/federated/lean/network.py",
                 "engines/native/perceptron.cpp", "engines/native/vectors.h"):  # fmt: skip
        with (package / name).open("a") as file:
            file.write("# changed\n")
        assert version() != before
        before = version()
    (package / "metrics.py").rename(package / "metric.py")
    assert version() != before


@pytest.mark.thorough
def test_code_that_counts_imports_none_that_does_not() -> None:
    """So no number can depend on a file that the version leaves out (trackers and this comparison give none), and
    whatever stands above a run is left out."""
    run = next(level for level, names in enumerate(FLOORS) if "pipelines" in names)
    assert set().union(*FLOORS[run + 1 :]) <= staleness.NOT_COUNTED
    for path in staleness.PACKAGE_FOLDER.rglob("*.py"):
        if staleness._counts(path):
            assert not set(imported(path)) & (staleness.NOT_COUNTED - {"provenance"}), path
            text = path.read_text(encoding="utf-8")
            left_out = r"knot_runner\.data\.(fetch|preflight|sources)|data import .*(preflight|sources)"
            assert not re.search(left_out, text), path


def test_reasons_name_other_code(package: Path) -> None:
    was = result()
    old = version()
    (package / "metrics.py").write_text("")
    assert provenance.reasons(Path(), was, settings(None)) == [] and version() != old  # cached until the process ends
    assert provenance.reasons(Path(), was, settings(None)) == [f"code {old}, now {version()}"]


def test_reasons_name_another_torch() -> None:
    import torch

    assert staleness.torch_version() == torch.__version__.partition("+")[0]
    same = result(versions={"torch": f"{staleness.torch_version()}+cu130"})
    assert provenance.reasons(Path(), same, settings(None)) == []
    found = provenance.reasons(Path(), result(versions={"torch": "1.0.0+cpu"}), settings(None))
    assert found == [f"torch 1.0.0, now {staleness.torch_version()}"]


def test_code_changes_name_plug_ins(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "pack" / "sub").mkdir(parents=True)
    for name in ("pack/__init__.py", "pack/sub/__init__.py", "pack/one.py", "single.py"):
        (tmp_path / name).write_text("raise SystemExit\n")  # asking must not import
    monkeypatch.syspath_prepend(tmp_path)
    names = (str(tmp_path / "mine.py"), "pack", "pack.sub", "pack.one", "single")
    was = result(plugins=names)
    assert None not in was["plugins"].values() and not {"pack", "single"} & set(sys.modules)
    assert provenance.code_changes(was) == []
    (tmp_path / "pack/one.py").write_text("y = 1\n")
    assert provenance.code_changes(was) == ["plug-in pack changed", "plug-in pack.one changed"]
    (tmp_path / "single.py").write_text("y = 1\n")
    (tmp_path / "mine.py").unlink()
    assert provenance.code_changes(was)[0] == f"plug-in {names[0]} is gone"
    assert provenance.code_changes(was)[-1] == "plug-in single changed"
