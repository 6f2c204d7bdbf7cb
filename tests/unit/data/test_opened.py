"""What a text task says it read is what was opened; what was not there is said too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from knot_runner.config.settings import TaskSettings
from knot_runner.data.load import load_task
from knot_runner.provenance import Opened, fingerprints
from tests.unit.data import opens


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


def test_all_formats(folder: Path, all_formats) -> None:
    with opens.opened_below(folder) as seen:
        task = load_task(all_formats, folder)
    assert seen == opens.paths(task.files, folder)
    assert seen == {"dialogues_x.txt", "dialogues_emotion_x.txt", "in/g.jsonl", "t.csv"}
    opens.check(task.files, folder)


def test_a_relative_folder_reads_what_an_absolute_one_does(folder: Path, all_formats, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    time.sleep(2 * fingerprints.TICK / 1e9)  # files younger than that have no stamps on record
    relative, absolute = (load_task(all_formats, root) for root in (Path(folder.name), folder))
    assert (relative.files, relative.digest, relative.notes) == (absolute.files, absolute.digest, absolute.notes)


def test_a_file_of_two_data_sets_is_hashed_once(folder: Path, task_dict, make, monkeypatch) -> None:
    task_dict["datasets"]["G"]["local"]["files"] = {"pool": [{"path": "a.csv"}, {"path": "g.csv"}]}
    hashed: list[str] = []
    monkeypatch.setattr(fingerprints, "sha256", lambda path: hashed.append(path.name) or path.name)
    files = load_task(make(task_dict), folder).files
    assert hashed == [one.path for one in files] == [one.sha256 for one in files] == ["a.csv", "g.csv", "t.csv"]


def test_what_is_not_there_is_said(folder: Path, task_dict, make) -> None:
    task_dict["missing"] = ["B"]
    more = {"pool": [{"path": "more.csv"}]}
    task_dict["datasets"]["B"] = {
        **task_dict["datasets"]["A"],
        "local": task_dict["datasets"]["A"]["local"] | {"files": more},
    }
    files = load_task(make(task_dict), folder).files
    assert Opened("more.csv", 0, 0, None) in files
    assert opens.paths(files, folder) == {"a.csv", "g.csv", "t.csv"}


@pytest.mark.thorough
@pytest.mark.real_data
def test_real_texts(data_root: Path, preset) -> None:
    with opens.opened_below(data_root) as seen:
        task = load_task(preset("erc", source="local", missing="skip"), data_root)
    assert seen - {"SHA256SUMS"} == opens.paths(task.files, data_root)
    assert any("emotion" in path for path in seen) and any("meld" in path for path in seen)
    opens.check(task.files, data_root)
