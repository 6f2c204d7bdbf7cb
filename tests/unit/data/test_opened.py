"""The files that a text task records are those that it opened; absent files are recorded, too."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from knot_runner.config.settings import TaskSettings
from knot_runner.data.load import load_task
from knot_runner.provenance import Opened, fingerprints
from knot_runner.testing.data import opened_files, recorded_files


@pytest.fixture
def all_formats(folder: Path, task_dict, make, write_jsonl) -> TaskSettings:
    """A dailydialog, a jsonl and a csv data set, the files below ``folder``."""
    (folder / "dialogues_x.txt").write_text("a __eou__ b __eou__\n" * 10)
    (folder / "dialogues_emotion_x.txt").write_text("1 2\n" * 10)
    (folder / "in").mkdir()
    write_jsonl(folder / "in" / "g.jsonl", [{"text": f"g {i}", "label": ["bad", "good"][i % 2]} for i in range(20)])
    a, g = task_dict["datasets"]["A"], task_dict["datasets"]["G"]
    a["labels"], a["local"]["format"] = {"1": "bad", "2": "good"}, "dailydialog"
    a["local"]["files"] = {"pool": [{"path": "dialogues_x.txt"}]}
    g["local"] |= {"format": "jsonl", "files": {"pool": [{"path": "in/g.jsonl"}]}}
    return make(task_dict)


def test_load_task_records_what_it_opened(folder: Path, all_formats) -> None:
    with opened_files() as opened:
        task = load_task(all_formats, folder)
    names = ["dialogues_x.txt", "dialogues_emotion_x.txt", "in/g.jsonl", "t.csv"]
    assert opened == recorded_files(task.files, folder) == {folder / name for name in names}
    assert [one.path for one in task.files] == names
    for one in task.files:
        stat, content = (folder / one.path).stat(), (folder / one.path).read_bytes()
        assert (one.sha256, one.size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert one.mtime_ns == stat.st_mtime_ns


def test_load_task_reads_a_relative_folder_as_an_absolute_one(folder: Path, all_formats, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    time.sleep(2 * fingerprints.TICK / 1e9)  # files younger than that have no stamps on record
    relative, absolute = (load_task(all_formats, root) for root in (Path(folder.name), folder))
    assert (relative.files, relative.digest, relative.notes) == (absolute.files, absolute.digest, absolute.notes)


def test_load_task_hashes_a_file_of_two_data_sets_once(folder: Path, task_dict, make, monkeypatch) -> None:
    task_dict["datasets"]["G"]["local"]["files"] = {"pool": [{"path": "a.csv"}, {"path": "g.csv"}]}
    hashed: list[str] = []
    monkeypatch.setattr(fingerprints, "sha256", lambda path: hashed.append(path.name) or path.name)
    files = load_task(make(task_dict), folder).files
    assert hashed == [one.path for one in files] == [one.sha256 for one in files] == ["a.csv", "g.csv", "t.csv"]


def test_load_task_records_an_absent_file(folder: Path, task_dict, make) -> None:
    own = task_dict["datasets"]["A"]
    task_dict["datasets"]["B"] = {**own, "local": own["local"] | {"files": {"pool": [{"path": "more.csv"}]}}}
    files = load_task(make(task_dict | {"missing": ["B"]}), folder).files
    assert Opened("more.csv", 0, 0, None) in files
    assert recorded_files(files, folder) == {folder / name for name in ("a.csv", "g.csv", "t.csv")}
