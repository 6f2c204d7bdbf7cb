"""Loading from files: roles, missing files, changed files, and errors that name what is wrong."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from knot_runner.data.load import load_task
from tests.golden.messages import refuses


def test_roles_and_splits(folder: Path, task_dict, make) -> None:
    task = load_task(make(task_dict), folder)
    assert {name: {key: len(part) for key, part in data.splits.items()} for name, data in task.datasets.items()} == {
        "A": {"train": 12, "valid": 4, "test": 4},
        "G": {"train": 12, "valid": 4, "test": 4},
        "T": {"train": 12, "valid": 4},
    }
    assert (task.source, task.notes) == ("local", [])
    assert task.datasets["A"].splits["train"].labels.tolist().count(0) == 6
    assert set(task.datasets["T"].splits["train"].labels.tolist()) == {-1}
    assert task.datasets["A"].splits["train"].pairs is None


def test_the_digest_is_of_the_content(folder: Path, task_dict, make, tmp_path: Path) -> None:
    before = load_task(make(task_dict), folder).digest
    moved = shutil.copytree(folder, tmp_path / "elsewhere with é")
    assert load_task(make(task_dict), moved).digest == before
    file = moved / "g.csv"
    file.write_text(file.read_text().replace("text 3,", "text three,"))
    assert load_task(make(task_dict), moved).digest != before


def test_official_splits_chunk_and_limit(folder: Path, task_dict, make) -> None:
    data = task_dict["datasets"]["A"]
    data["local"]["files"] = {"train": [{"path": "a.csv"}, {"path": "g.csv"}], "test": [{"path": "t.csv"}]}
    data["chunk"] = [1, 2]
    task_dict["split"] = {"valid": 0.2, "test": 0.0, "seed": 1}
    task_dict["datasets"]["G"]["local"]["files"] = {"train": [{"path": "g.csv"}], "test": [{"path": "g.csv"}]}
    splits = load_task(make(task_dict), folder).datasets["A"].splits
    assert [len(part) for part in splits.values()] == [16, 4, 10]
    assert splits["test"].texts == [f"t text {i}" for i in range(10, 20)]
    task_dict["limit"] = 10
    assert [len(p) for p in load_task(make(task_dict), folder).datasets["A"].splits.values()] == [10, 4, 10]


def test_pairs(folder: Path, task_dict, make, write_jsonl) -> None:
    rows = [{"p": f"premise {i}", "h": f"hypothesis {i}", "y": "bad" if i % 2 else "good"} for i in range(20)]
    write_jsonl(folder / "pairs.jsonl", rows)
    for data in task_dict["datasets"].values():
        files = {"pool": [{"path": "pairs.jsonl"}]}
        data["local"] = {"format": "jsonl", "files": files, "columns": {"text": "p", "pair": "h", "label": "y"}}
    task_dict["kind"] = "inference"
    train = load_task(make(task_dict), folder).datasets["A"].splits["train"]
    assert [text.replace("premise", "hypothesis") for text in train.texts] == train.pairs
    del task_dict["datasets"]["A"]["local"]["columns"]["pair"]
    with refuses():
        load_task(make(task_dict), folder)


def test_a_transfer_set_may_have_no_labels(folder: Path, task_dict, make) -> None:
    (folder / "t.csv").write_text("text\n" + "".join(f"only text {i}\n" for i in range(20)))
    task_dict["datasets"]["T"]["local"]["columns"] = {"text": "text"}
    assert len(load_task(make(task_dict), folder).datasets["T"].splits["train"]) == 12
    task_dict["datasets"]["A"]["local"]["columns"] = {"text": "text"}
    with refuses():
        load_task(make(task_dict), folder)


def test_a_context_needs_dialogues(folder: Path, task_dict, make) -> None:
    task_dict["context"] = 2
    with refuses():
        load_task(make(task_dict), folder)


def test_no_data_folder(task_dict, make, tmp_path: Path) -> None:
    with refuses():
        load_task(make(task_dict), None)
    with refuses():
        load_task(make(task_dict), tmp_path / "nowhere")


def test_a_missing_file(folder: Path, task_dict, make) -> None:
    (folder / "a.csv").unlink()
    with refuses():
        load_task(make(task_dict), folder)
    task_dict["missing"] = ["A"]
    with refuses():
        load_task(make(task_dict), folder)
    task_dict["datasets"]["B"] = {**task_dict["datasets"]["G"], "role": "local"}
    task = load_task(make(task_dict), folder)
    assert list(task.datasets) == ["G", "T", "B"]
    assert task.notes == ["A: left out, a.csv not there"]


def test_skip_stands_for_the_optional_sets_and_no_other(folder: Path, task_dict, make) -> None:
    """A misspelt path of one's own data set is an error, whatever else may be missing."""
    task_dict |= {"missing": "skip", "optional": ["B"]}
    own = {**task_dict["datasets"]["A"]["local"], "files": {"pool": [{"path": "b.csv"}]}}
    task_dict["datasets"]["B"] = {**task_dict["datasets"]["A"], "local": own}
    task = load_task(make(task_dict), folder)
    assert list(task.datasets) == ["A", "G", "T"] and task.notes == ["B: left out, b.csv not there"]
    task_dict["datasets"]["A"]["local"]["files"]["pool"][0]["path"] = "aa.csv"
    with refuses():
        load_task(make(task_dict), folder)


def test_missing_names_local_data_sets(task_dict, make) -> None:
    for name in ("Aa", "G", "T"):
        with refuses():
            make(task_dict | {"missing": [name]})
    with refuses():
        make(task_dict | {"missing": "ask"})


def test_half_a_data_set_is_an_error(folder: Path, task_dict, make) -> None:
    task_dict["datasets"]["A"]["local"]["files"] = {"pool": [{"path": "a.csv"}, {"path": "more.csv"}]}
    for missing in ("error", ["A"]):
        with refuses():
            load_task(make(task_dict | {"missing": missing}), folder)


def test_a_file_that_may_be_missing_is_said_and_recorded(folder: Path, task_dict, make) -> None:
    whole = load_task(make(task_dict), folder)
    for name, files in (("A", ["a.csv", "more.csv"]), ("T", ["rounds/1.csv", "t.csv"])):
        task_dict["datasets"][name]["local"]["files"] = {"pool": [{"path": path} for path in files]}
    for changes in (
        {"missing": ["more.csv", "rounds/1.csv"]},
        {"missing": "skip", "optional": ["more.csv", "rounds/1.csv"]},
    ):
        task = load_task(make(task_dict | changes), folder)
        assert task.notes == [
            "A: read without more.csv: not there",
            "T: read without rounds/1.csv: not there",
        ]
        assert {file.path: bool(file.sha256) for file in task.files} == {
            "a.csv": True, "more.csv": False, "g.csv": True, "t.csv": True, "rounds/1.csv": False,
        }  # fmt: skip
        for name, dataset in whole.datasets.items():
            for split, examples in dataset.splits.items():
                assert task.datasets[name].splits[split].texts == examples.texts
    (folder / "more.csv").write_text((folder / "a.csv").read_text())
    grown = load_task(make(task_dict | {"missing": ["more.csv", "rounds/1.csv"]}), folder)
    assert grown.notes == ["T: read without rounds/1.csv: not there"]
    assert len(grown.datasets["A"].splits["train"]) == 2 * len(whole.datasets["A"].splits["train"])


def test_a_split_needs_a_file(folder: Path, task_dict, make) -> None:
    """The held-out rows would be cut from train in silence."""
    task_dict["datasets"]["A"]["local"]["files"] = {"train": [{"path": "a.csv"}], "heldout": [{"path": "more.csv"}]}
    with refuses():
        load_task(make(task_dict | {"missing": ["more.csv"]}), folder)


def test_a_data_set_without_any_of_its_files_is_left_out_whole(folder: Path, task_dict, make) -> None:
    own = {
        **task_dict["datasets"]["A"]["local"],
        "files": {"train": [{"path": "b.csv"}], "heldout": [{"path": "c.csv"}]},
    }
    task_dict["datasets"]["B"] = {**task_dict["datasets"]["A"], "local": own}
    task = load_task(make(task_dict | {"missing": ["B", "c.csv"]}), folder)
    assert "B" not in task.datasets and task.notes == ["B: left out, b.csv, c.csv not there"]
    assert [file.path for file in task.files if not file.sha256] == ["b.csv", "c.csv"]


@pytest.mark.parametrize("file", ["g.csv", "t.csv"])
def test_missing_global_or_transfer_file(folder: Path, task_dict, make, file: str) -> None:
    (folder / file).unlink()
    task_dict |= {"missing": "skip", "optional": [file[0].upper()]}
    with refuses():
        load_task(make(task_dict), folder)


def test_dailydialog_lacks_its_emotion_file(folder: Path, task_dict, make) -> None:
    (folder / "dialogues_x.txt").write_text("a __eou__\n")
    task_dict["datasets"]["A"]["local"] = {
        "format": "dailydialog",
        "files": {"pool": [{"path": "dialogues_x.txt"}]},
        "columns": {"text": "text", "label": "label"},
    }
    with refuses():
        load_task(make(task_dict), folder)


def test_a_wrong_label_column_is_an_error_not_a_label(folder: Path, task_dict, make) -> None:
    task_dict["datasets"]["A"]["local"]["columns"]["label"] = "text"
    with refuses():
        load_task(make(task_dict), folder)


def test_checksums_where_the_folder_has_them(folder: Path, task_dict, make) -> None:
    lines = [f"{hashlib.sha256((folder / f'{n}.csv').read_bytes()).hexdigest()}  ./{n}.csv\n" for n in "ag"]
    (folder / "SHA256SUMS").write_text("".join(lines))
    load_task(make(task_dict), folder)
    file = folder / "g.csv"
    file.write_text(file.read_text().replace("text 3", "text 2"))  # a change that no reader could see
    with refuses():
        load_task(make(task_dict), folder)
    (folder / "SHA256SUMS").write_text("abc a.csv\n")
    with refuses():
        load_task(make(task_dict), folder)


def test_rows_without_text_are_said(folder: Path, task_dict, make) -> None:
    with (folder / "a.csv").open("a") as file:
        file.write(",good\n")
    assert load_task(make(task_dict), folder).notes == ["A: 1 row without text left out"]


def test_a_test_set_that_stands_in_train_is_said(folder: Path, task_dict, make) -> None:
    task_dict["datasets"]["G"]["local"]["files"] = {"train": [{"path": "g.csv"}], "test": [{"path": "g.csv"}]}
    (note,) = load_task(make(task_dict), folder).notes
    assert note.startswith("G: ") and note.endswith("of the test texts stand in train too; its score is memory")


def test_a_delimiter_of_one_s_own(folder: Path, task_dict, make) -> None:
    before = load_task(make(task_dict), folder)
    file = folder / "a.csv"
    file.write_text(file.read_text().replace(",", ";"))
    with refuses():
        load_task(make(task_dict), folder)
    local = task_dict["datasets"]["A"]["local"]
    local["delimiter"] = ";"
    assert load_task(make(task_dict), folder).digest == before.digest
    for wrong in (";;", "", '"', "\n"):
        local["delimiter"] = wrong
        with refuses():
            make(task_dict)
    local |= {"format": "jsonl", "delimiter": ";"}
    with refuses():
        make(task_dict)
