"""Stale results: what counts as changed, what does not, and that nothing set aside is lost."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner import provenance
from knot_runner.provenance import fingerprints
from knot_runner.util.files import sha256
from tests.golden.messages import refuses
from tests.stale_records import result, settings, touch


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, fingerprints.Opened]:
    """A data folder with one file, and that as a run read it."""
    path = tmp_path / "meld" / "train.csv"
    path.parent.mkdir()
    path.write_bytes(b"text,label\n" + b"a,b\n" * 100)
    return path, fingerprints.fingerprint(path, "meld/train.csv")


# ---------------------------------------------------------------------------------------------------------------- files


def test_same_code_and_files(data, tmp_path: Path) -> None:
    assert provenance.reasons(Path(), result(data[1]), settings(tmp_path)) == []


def test_a_changed_byte(data, tmp_path: Path) -> None:
    path, was = data
    content = path.read_bytes()
    path.write_bytes(content[:50] + b"X" + content[51:])
    touch(path)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: meld/train.csv changed"]
    path.write_bytes(content)  # as it was, at another time
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == []


def test_another_length_is_seen_without_reading(data, tmp_path: Path, monkeypatch) -> None:
    path, was = data
    path.write_bytes(path.read_bytes() + b"\n")
    monkeypatch.setattr(fingerprints, "sha256", None)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: meld/train.csv changed"]


def test_a_touched_or_copied_file_is_the_same(data, tmp_path: Path) -> None:
    path, was = data
    touch(path)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == []
    moved = tmp_path / "elsewhere" / "meld" / "train.csv"
    moved.parent.mkdir(parents=True)
    shutil.copyfile(path, moved)
    assert provenance.reasons(Path(), result(was), settings(tmp_path / "elsewhere")) == []


def test_gone_and_there_now(data, tmp_path: Path) -> None:
    path, was = data
    other = fingerprints.absent("iemocap/all.csv")
    assert provenance.reasons(Path(), result(was, other), settings(tmp_path)) == []
    path.unlink()
    (tmp_path / "iemocap").mkdir()
    (tmp_path / "iemocap/all.csv").write_text("x\n")
    found = provenance.reasons(Path(), result(was, other), settings(tmp_path))
    assert found == ["data: meld/train.csv is gone", "data: iemocap/all.csv is there now"]
    assert provenance.reasons(Path(), result(was), settings(None)) == []  # without a root nothing can be compared


def test_a_file_that_may_not_be_read(data, tmp_path: Path, monkeypatch) -> None:
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


@pytest.mark.parametrize(("change", "is_stale"), [
    (lambda folder: None, False), (lambda folder: touch(folder / "ape/a"), False),
    (lambda folder: (folder / "ape/.hidden").write_text("x"), False),
    (lambda folder: (folder / "ape/c").write_text("x"), True), (lambda folder: (folder / "ape/b").unlink(), True),
    (lambda folder: (folder / "ape/b").rename(folder / "wolf/b"), True),
    (lambda folder: (folder / "ape/b").rename(folder / "ape/bb"), True),
    (lambda folder: (folder / "ape/b").write_text("ape/B") and touch(folder / "ape/b"), True),
])  # fmt: skip
def test_folders(change, is_stale: bool, tree, tmp_path: Path) -> None:
    folder, was = tree
    change(folder)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == (["data: train changed"] if is_stale else [])


def test_a_folder_that_is_gone_or_a_file(tree, tmp_path: Path) -> None:
    folder, was = tree
    shutil.rmtree(folder)
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: train is gone"]
    folder.write_text("x")
    assert provenance.reasons(Path(), result(was), settings(tmp_path)) == ["data: train is gone"]


@given(
    before=st.binary(max_size=4),
    after=st.none() | st.binary(max_size=4),
    later=st.integers(1, 3),
)
def test_stale_just_when_the_content_differs(tmp_path_factory, before: bytes, after: bytes | None, later: int) -> None:
    path = tmp_path_factory.mktemp("file") / "x"
    path.write_bytes(before)
    was = fingerprints.fingerprint(path, "x")
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
        os.utime(path, ns=(0, was.mtime_ns + later))
    assert (fingerprints.Now().change(path.parent, was) is not None) == (after != before)


def test_a_thousand_runs_read_a_touched_file_once(data, tree, tmp_path: Path, monkeypatch) -> None:
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


# ------------------------------------------------------------------------------------------------- set aside, summaries


def test_set_aside_keeps_all(tmp_path: Path) -> None:
    run = tmp_path / "out" / "erc" / "sinkhorn_e" / "0123456789ab"
    places = []
    for number in (1, 2, 3):
        run.mkdir(parents=True)
        (run / "result.json").write_text(str(number))
        places.append(provenance.set_aside(run))
        assert not run.exists()
    assert [str(place.relative_to(tmp_path / "out")) for place in places] == [
        f".stale/erc/sinkhorn_e/0123456789ab-{number}" for number in (1, 2, 3)
    ]
    assert [(place / "result.json").read_text() for place in places] == ["1", "2", "3"]


def test_set_aside_where_it_cannot(tmp_path: Path) -> None:
    run = tmp_path / "erc" / "sinkhorn_e" / "0123456789ab"
    run.mkdir(parents=True)
    (tmp_path / ".stale").write_text("in the way")
    with refuses():
        provenance.set_aside(run)
    assert run.is_dir()


def test_summary() -> None:
    assert provenance.staleness_line([]) == provenance.staleness_line([("a", [])]) == []
    assert provenance.staleness_line([("a", ["code 1, now 2"]), ("b", []), ("c", ["code 1, now 2"])]) == [
        "2 stale runs kept; --stale=rerun reruns stale runs",
        "  code 1, now 2 (2 runs)",
    ]


def test_summary_of_many_reasons() -> None:
    runs = [(f"run {i}", ["code 1, now 2", *([f"data: {i % 6}.csv changed"] if i else [])]) for i in range(12)]
    lines = provenance.staleness_line(runs)
    assert lines[:3] == [
        "12 stale runs kept; --stale=rerun reruns stale runs",
        "  code 1, now 2 (12 runs)",
        "  data: 1.csv changed (2 runs)",
    ]
    assert lines[-1] == "  and 3 more reasons" and len(lines) == 6
