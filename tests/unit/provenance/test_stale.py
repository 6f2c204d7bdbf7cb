"""Stale results: which files and which code count as changed, and that nothing set aside is lost."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from knot_runner import provenance
from knot_runner.provenance import fingerprints
from knot_runner.util.files import sha256
from tests.disk import damage_in_place
from tests.golden.messages import refuses
from tests.stale_records import result, settings, touch
from tests.unit.test_imports import FLOORS, imported


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, fingerprints.Opened]:
    """A data folder with one file, and that as a run read it."""
    path = tmp_path / "meld" / "train.csv"
    path.parent.mkdir()
    path.write_bytes(b"text,label\n" + b"a,b\n" * 100)
    return path, fingerprints.fingerprint(path, "meld/train.csv")


def copied(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    touch(path)


@pytest.mark.parametrize(("change", "found"), [
    (lambda path: None, []), (touch, []), (copied, []),
    (lambda path: (path.write_bytes(path.read_bytes().replace(b"a,b", b"a,X", 1)), touch(path)),
     ["data: meld/train.csv changed"]),
    (lambda path: path.unlink(), ["data: meld/train.csv no longer exists"]),
])  # fmt: skip
def test_reasons_are_of_the_content_of_files(data, tmp_path: Path, change, found: list[str]) -> None:
    path, was = data
    change(path)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == found


@pytest.mark.parametrize("settled", [True, False])
def test_reasons_detect_damage_in_place(data, tmp_path: Path, settled: bool) -> None:
    path, was = data
    if settled:  # and so recorded with inode and time of change
        time.sleep(1.1 * fingerprints.TICK / 1e9)
        was = fingerprints.fingerprint(path, was.path)
        assert was.ctime_ns == path.stat().st_ctime_ns
    damage_in_place(path)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: meld/train.csv changed"]


def test_reasons_see_another_length_without_reading(data, tmp_path: Path, monkeypatch) -> None:
    path, was = data
    path.write_bytes(path.read_bytes() + b"\n")
    monkeypatch.setattr(fingerprints, "sha256", None)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: meld/train.csv changed"]


def test_reasons_name_newly_present_file(data, tmp_path: Path) -> None:
    was = result(data[1], fingerprints.absent("iemocap/all.csv"))
    assert provenance.reasons(Path(), was, settings(tmp_path)) == []
    (tmp_path / "iemocap").mkdir()
    (tmp_path / "iemocap/all.csv").write_text("x\n")
    assert provenance.reasons(Path(), was, settings(tmp_path)) == ["data: iemocap/all.csv is new"]
    assert provenance.reasons(Path(), was, settings(None)) == []  # without a root nothing can be compared


def test_reasons_name_unreadable_file(data, tmp_path: Path, monkeypatch) -> None:
    path, was = data
    touch(path)

    def refuse(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fingerprints, "sha256", refuse)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: meld/train.csv cannot be read"]
    with refuses():
        fingerprints.fingerprint(path, "x")


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, fingerprints.Opened]:
    """Class folders with three files, and them as a run read them."""
    folder = tmp_path / "train"
    for name in ("ape/a", "ape/b", "wolf/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    parts = [fingerprints.read_fingerprints(folder / name, name)[1] for name in fingerprints.members(folder, "*/*")]
    return folder, fingerprints.merge_fingerprints("train", "*/*", parts)


CHANGED, GONE = ["data: train changed"], ["data: train no longer exists"]


@pytest.mark.parametrize(("change", "found"), [
    (lambda folder: None, []), (lambda folder: touch(folder / "ape/a"), []),
    (lambda folder: (folder / "ape/.hidden").write_text("x"), []),
    (lambda folder: (folder / "ape/c").write_text("x"), CHANGED), (lambda folder: (folder / "ape/b").unlink(), CHANGED),
    (lambda folder: (folder / "ape/b").rename(folder / "wolf/b"), CHANGED),
    (lambda folder: (folder / "ape/b").rename(folder / "ape/bb"), CHANGED),
    (lambda folder: (folder / "ape/b").write_text("ape/B") and touch(folder / "ape/b"), CHANGED),
    (shutil.rmtree, GONE), (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), GONE),
])  # fmt: skip
def test_reasons_changed_folder(change, found: list[str], tree, tmp_path: Path) -> None:
    folder, was = tree
    change(folder)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == found


def test_reasons_read_each_file_once_across_runs(data, tree, tmp_path: Path, monkeypatch) -> None:
    path, was = data
    touch(path)
    touch(tree[0] / "ape/a")
    read: list[Path] = []
    monkeypatch.setattr(fingerprints, "sha256", lambda path: read.append(path) or sha256(path))
    now = provenance.Now()
    for number in range(1000):  # recorded at different times
        earlier = dataclasses.replace(was, mtime_ns=was.mtime_ns - number % 3)
        assert provenance.reasons(Path(), result(earlier, tree[1]), settings(tmp_path), now) == []
    assert sorted(read) == sorted([path, *tree[0].glob("*/*")])


def test_set_aside_keeps_every_run(tmp_path: Path) -> None:
    run = tmp_path / "out" / "erc" / "sinkhorn_e" / "0123456789ab"
    for number in ("1", "2", "3"):
        run.mkdir(parents=True)
        (run / "result.json").write_text(number)
        place = provenance.set_aside(run)
        assert place == tmp_path / f"out/.stale/erc/sinkhorn_e/0123456789ab-{number}" and not run.exists()
        assert (place / "result.json").read_text() == number


def test_set_aside_refuses_blocking_file(tmp_path: Path) -> None:
    run = tmp_path / "erc" / "sinkhorn_e" / "0123456789ab"
    run.mkdir(parents=True)
    (tmp_path / ".stale").write_text("in the way")
    with refuses():
        provenance.set_aside(run)
    assert run.is_dir()


def test_staleness_line_counts_reasons() -> None:
    assert provenance.staleness_line([]) == []
    assert provenance.staleness_line([["code 1"]])[0].startswith("1 stale run shown unchanged. ")
    runs = [["code 1, now 2"], *(["code 1, now 2", f"data: {i % 6}.csv changed"] for i in range(1, 12))]
    lines = provenance.staleness_line(runs)
    assert lines[:3] == [
        "12 stale runs shown unchanged. To rerun stale runs, start the runs with --stale=rerun",
        "  code 1, now 2 (12 runs)",
        "  data: 1.csv changed (2 runs)",
    ]
    assert lines[-1] == "  and 3 more reasons" and len(lines) == 6


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A copy of the package's sources, which code versions are then made of."""
    copy = tmp_path / "copy"
    shutil.copytree(provenance.PACKAGE_FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE_FOLDER", copy)
    provenance.code_version.cache_clear()
    yield copy
    provenance.code_version.cache_clear()


def version() -> str:
    provenance.code_version.cache_clear()
    return provenance.code_version()


def test_code_version_tracks_code_that_changes_numbers(package: Path) -> None:
    before = version()
    assert re.fullmatch(r"0\.1\.0\+[0-9a-f]{12}", before)
    for name in ("report/statistics/intervals.py", "cli/main.py", "composing/job.py", "engine/tracker.py",
                 "engine/tracker_services.py", "methods/notes.md", "provenance/__init__.py"):  # fmt: skip
        with (package / name).open("a") as file:
            file.write("# changed\n")
    (package / "conf").mkdir()
    (package / "conf/x.py").write_text("")  # a wheel has conf/ here, a checkout has not
    assert version() == before
    for name in ("metrics.py", "config/strict.py", "methods/knot.py", "engine/federated/lean/network.py"):
        with (package / name).open("a") as file:
            file.write("# changed\n")
        assert version() != before
        before = version()
    (package / "metrics.py").rename(package / "metric.py")
    assert version() != before


def test_counted_code_imports_no_uncounted_code() -> None:
    """So no number can depend on a file that the version leaves out (trackers and this comparison give none), and
    whatever stands above a run is left out, but for papers' own runs. Their results bring their summaries."""
    run = next(level for level, names in enumerate(FLOORS) if "pipelines" in names)
    assert set().union(*FLOORS[run + 1 :]) <= provenance.NOT_COUNTED | {"papers"}
    counted = [path for path in provenance.PACKAGE_FOLDER.rglob("*.py") if provenance._counts(path)]
    assert {path.relative_to(provenance.PACKAGE_FOLDER).parts[0] for path in counted} >= {"engine", "methods", "data"}
    for path in counted:
        shown = {"provenance", "report"} if path.match("papers/*/results.py") else {"provenance"}
        assert not set(imported(path)) & (provenance.NOT_COUNTED - shown), path
        left_out = r"knot_runner\.data\.(fetch|preflight|sources)|data import .*(preflight|sources)"
        assert not re.search(left_out, path.read_text(encoding="utf-8")), path


def test_reasons_name_other_code(package: Path) -> None:
    was = result()
    old = version()
    (package / "metrics.py").write_text("")
    assert provenance.reasons(Path(), was, settings(None)) == [] and version() != old  # cached until the process ends
    assert provenance.reasons(Path(), was, settings(None)) == [f"code {old}, now {version()}"]


def test_reasons_name_another_torch() -> None:
    assert provenance.torch_version() == torch.__version__.partition("+")[0]
    same = result(versions={"torch": f"{provenance.torch_version()}+cu130"})
    assert provenance.reasons(Path(), same, settings(None)) == []
    found = provenance.reasons(Path(), result(versions={"torch": "1.0.0+cpu"}), settings(None))
    assert found == [f"torch 1.0.0, now {provenance.torch_version()}"]


def test_code_changes_name_plug_ins(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "pack" / "sub").mkdir(parents=True)
    for name in ("pack/__init__.py", "pack/sub/__init__.py", "pack/one.py", "single.py"):
        (tmp_path / name).write_text("raise SystemExit\n")  # asking must not import
    monkeypatch.syspath_prepend(tmp_path)
    names = (str(tmp_path / "mine.py"), "pack", "pack.sub", "pack.one", "single")
    was = result(plugins=names).made_by
    assert None not in was["plugins"].values() and not {"pack", "single"} & set(sys.modules)
    assert provenance.code_changes(was) == []
    (tmp_path / "pack/one.py").write_text("y = 1\n")
    assert provenance.code_changes(was) == ["plug-in pack changed", "plug-in pack.one changed"]
    (tmp_path / "single.py").write_text("y = 1\n")
    (tmp_path / "mine.py").unlink()
    assert provenance.code_changes(was)[0] == f"plug-in {names[0]} was removed"
    assert provenance.code_changes(was)[-1] == "plug-in single changed"
