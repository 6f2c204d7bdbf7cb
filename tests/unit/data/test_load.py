"""Text tasks from files: roles, missing files, checksums, what is recorded, and errors that name what is wrong."""

import hashlib
import shutil
import time
from pathlib import Path

import datasets
import pytest

from knot_runner.data.load import load_task
from knot_runner.provenance import Opened, fingerprints
from tests.data_checks import opened_files, recorded_files
from tests.golden.messages import refuses
from tests.unit.data.text_tasks import write_jsonl


def pool(*paths):
    return {"pool": [{"path": path} for path in paths]}


def with_files(task_dict, name, like, **files):
    """Give the data set ``name`` the settings of ``like`` and ``files``."""
    own = task_dict["datasets"][like]
    task_dict["datasets"][name] = {**own, "local": {**own["local"], "files": files}}


def test_load_task_splits_by_roles(folder, task_dict, make):
    (folder / "t.csv").write_text("text\n" + "".join(f"only text {i}\n" for i in range(20)))
    task_dict["datasets"]["T"]["local"]["columns"] = {"text": "text"}  # a transfer set needs no labels
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


def test_load_task_applies_official_splits_chunks_and_limits(folder, task_dict, make):
    with_files(task_dict, "A", "A", train=[{"path": "a.csv"}, {"path": "g.csv"}], test=[{"path": "t.csv"}])
    task_dict["datasets"]["A"]["chunk"] = [1, 2]
    task_dict["split"] = {"valid": 0.2, "test": 0.0, "seed": 1}
    with_files(task_dict, "G", "G", train=[{"path": "g.csv"}], test=[{"path": "g.csv"}])
    task = load_task(make(task_dict), folder)
    splits = task.datasets["A"].splits
    assert [len(part) for part in splits.values()] == [16, 4, 10]
    assert splits["test"].texts == [f"t text {i}" for i in range(10, 20)]
    (note,) = task.notes
    assert note.startswith("G: ") and note.endswith(
        "of the test texts are also in the training set, so test scores are too optimistic"
    )
    task_dict["max_examples"] = 10
    assert [len(p) for p in load_task(make(task_dict), folder).datasets["A"].splits.values()] == [10, 4, 10]


def test_load_task_reads_pairs(folder, task_dict, make):
    rows = [{"p": f"premise {i}", "h": f"hypothesis {i}", "y": "bad" if i % 2 else "good"} for i in range(20)]
    write_jsonl(folder / "pairs.jsonl", rows)
    for data in task_dict["datasets"].values():
        columns = {"text": "p", "pair": "h", "label": "y"}
        data["local"] = {"format": "jsonl", "files": pool("pairs.jsonl"), "columns": columns}
    task_dict["kind"] = "inference"
    train = load_task(make(task_dict), folder).datasets["A"].splits["train"]
    assert [text.replace("premise", "hypothesis") for text in train.texts] == train.pairs
    del task_dict["datasets"]["A"]["local"]["columns"]["pair"]
    with refuses():
        load_task(make(task_dict), folder)


@pytest.mark.parametrize("case", [
    "no folder", "nowhere", "context", "label column", "no label column", "emotion file", "half a set",
    "half a set, named", "split", "global", "transfer",
])  # fmt: skip
def test_load_task_refuses(folder, task_dict, make, case):
    own, root = task_dict["datasets"]["A"]["local"], folder
    if case in ("no folder", "nowhere"):
        root = None if case == "no folder" else folder / "nowhere"
    elif case == "context":  # needs dialogues
        task_dict["context"] = 2
    elif case == "label column":
        own["columns"]["label"] = "text"
    elif case == "no label column":
        del own["columns"]["label"]
    elif case == "emotion file":
        (folder / "dialogues_x.txt").write_text("a __eou__\n")
        own |= {"format": "dailydialog", "files": pool("dialogues_x.txt")}
    elif case.startswith("half a set"):
        own["files"] = pool("a.csv", "more.csv")
        task_dict["missing"] = ["A"] if case.endswith("named") else "error"
    elif case == "split":  # its rows would be cut from train in silence
        own["files"] = {"train": [{"path": "a.csv"}], "heldout": [{"path": "more.csv"}]}
        task_dict["missing"] = ["more.csv"]
    else:
        (folder / f"{case[0]}.csv").unlink()
        task_dict |= {"missing": "skip", "optional": [case[0].upper()]}
    with refuses():
        load_task(make(task_dict), root)


@pytest.mark.parametrize("missing", [["Aa"], ["G"], ["T"], "ask"])
def test_missing_takes_names_of_local_data_sets(task_dict, make, missing):
    with refuses():
        make(task_dict | {"missing": missing})


def test_load_task_omits_missing_local_set(folder, task_dict, make):
    (folder / "a.csv").unlink()
    for missing in ("error", ["A"]):
        with refuses():
            load_task(make(task_dict | {"missing": missing}), folder)
    with_files(task_dict, "A", "A", train=[{"path": "a.csv"}], heldout=[{"path": "c.csv"}])
    task_dict["datasets"]["B"] = {**task_dict["datasets"]["G"], "role": "local"}
    task = load_task(make(task_dict | {"missing": ["A", "c.csv"]}), folder)
    assert list(task.datasets) == ["G", "T", "B"]
    assert task.notes == ["A: left out, since these files are missing: a.csv, c.csv"]
    assert [file for file in task.files if not file.sha256] == [Opened(path, 0, 0, None) for path in ("a.csv", "c.csv")]
    assert recorded_files(task.files, folder) == {folder / name for name in ("g.csv", "t.csv")}


def test_load_task_skips_only_optional_sets(folder, task_dict, make):
    """A misspelt path of one's own data set is an error, whatever else may be missing."""
    task_dict |= {"missing": "skip", "optional": ["B"]}
    with_files(task_dict, "B", "A", **pool("b.csv"))
    task = load_task(make(task_dict), folder)
    assert list(task.datasets) == ["A", "G", "T"] and task.notes == [
        "B: left out, since these files are missing: b.csv"
    ]
    with_files(task_dict, "A", "A", **pool("aa.csv"))
    with refuses():
        load_task(make(task_dict), folder)


def test_load_task_records_permitted_missing_files(folder, task_dict, make):
    whole = load_task(make(task_dict), folder)
    with_files(task_dict, "A", "A", **pool("a.csv", "more.csv"))
    with_files(task_dict, "T", "T", **pool("rounds/1.csv", "t.csv"))
    absent = ["more.csv", "rounds/1.csv"]
    for changes in ({"missing": absent}, {"missing": "skip", "optional": absent}):
        task = load_task(make(task_dict | changes), folder)
        assert task.notes == [
            "A: read without these missing files: more.csv",
            "T: read without these missing files: rounds/1.csv",
        ]
        assert {file.path: bool(file.sha256) for file in task.files} == {
            "a.csv": True, "more.csv": False, "g.csv": True, "t.csv": True, "rounds/1.csv": False,
        }  # fmt: skip
        assert task.digest == whole.digest
    (folder / "more.csv").write_text((folder / "a.csv").read_text())
    grown = load_task(make(task_dict | {"missing": absent}), folder)
    assert grown.notes == ["T: read without these missing files: rounds/1.csv"]
    assert len(grown.datasets["A"].splits["train"]) == 2 * len(whole.datasets["A"].splits["train"])


def test_load_task_compares_checksums(folder, task_dict, make):
    before = load_task(make(task_dict), folder).digest
    lines = [f"{hashlib.sha256((folder / f'{n}.csv').read_bytes()).hexdigest().upper()}  ./{n}.csv\n" for n in "ag"]
    (folder / "SHA256SUMS").write_text("".join(lines))
    moved = shutil.copytree(folder, folder.parent / "elsewhere with é")
    (moved / "SHA256SUMS").unlink()
    file = folder / "g.csv"
    for root in (folder, moved):
        assert load_task(make(task_dict), root).digest == before
        (root / "g.csv").write_text(file.read_text().replace("text 3", "text 2"))  # a change that no reader could see
    assert load_task(make(task_dict), moved).digest != before
    with refuses():
        load_task(make(task_dict), folder)
    (folder / "SHA256SUMS").write_text("abc a.csv\n")
    with refuses():
        load_task(make(task_dict), folder)


def test_load_task_takes_another_delimiter(folder, task_dict, make):
    before = load_task(make(task_dict), folder)
    file = folder / "a.csv"
    file.write_text(file.read_text().replace(",", ";"))
    with refuses():
        load_task(make(task_dict), folder)
    local = task_dict["datasets"]["A"]["local"]
    local["delimiter"] = ";"
    assert load_task(make(task_dict), folder).digest == before.digest
    for wrong in ({"delimiter": ";;"}, {"delimiter": ""}, {"delimiter": '"'}, {"delimiter": "\n"}, {"format": "jsonl"}):
        task_dict["datasets"]["A"]["local"] = local | wrong
        with refuses():
            make(task_dict)


@pytest.fixture
def all_formats(folder, task_dict, make):
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


def test_load_task_records_what_it_opened_of_any_folder(folder, all_formats, monkeypatch):
    monkeypatch.chdir(folder.parent)
    time.sleep(2 * fingerprints.TICK / 1e9)  # files younger than that have no stamps on record
    relative = load_task(all_formats, Path(folder.name))
    with opened_files() as opened:
        task = load_task(all_formats, folder)
    names = ["dialogues_x.txt", "dialogues_emotion_x.txt", "in/g.jsonl", "t.csv"]
    assert opened == recorded_files(task.files, folder) == {folder / name for name in names}
    assert [one.path for one in task.files] == names
    for one in task.files:
        stat, content = (folder / one.path).stat(), (folder / one.path).read_bytes()
        assert (one.sha256, one.size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert one.mtime_ns == stat.st_mtime_ns
    assert (relative.files, relative.digest, relative.notes) == (task.files, task.digest, task.notes)


def test_load_task_hashes_shared_file_once(folder, task_dict, make, monkeypatch):
    task_dict["datasets"]["G"]["local"]["files"] = {"pool": [{"path": "a.csv"}, {"path": "g.csv"}]}
    hashed = []
    monkeypatch.setattr(fingerprints, "sha256", lambda path: hashed.append(path.name) or path.name)
    files = load_task(make(task_dict), folder).files
    assert hashed == [one.path for one in files] == [one.sha256 for one in files] == ["a.csv", "g.csv", "t.csv"]


TEXTS = [f"row {i}" for i in range(20)]
ROWS = {"text": TEXTS, "star": [1.0, 5.0] * 10, "kind": ["x", "x", "y", "y"] * 5, "unread": [0] * 20}


@pytest.fixture
def hub_task(task_dict):
    task_dict["source"] = "hub"
    for data in task_dict["datasets"].values():
        data["labels"] = {"1": "bad", "5": "good"}
        columns = {"text": "text", "label": "star"}
        data["hub"] = {"id": "some/stars", "revision": "abc", "splits": {"pool": ["train"]}, "columns": columns}
    return task_dict


@pytest.fixture
def calls(monkeypatch):
    made = []

    def load_dataset(identity, config, *, revision, split):
        made.append((identity, config, revision, split))
        return datasets.Dataset.from_dict(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return made


def test_hub_texts_are_of_their_revision(hub_task, make, calls):
    hub_task["datasets"]["A"]["hub"] |= {"config": "c", "splits": {"train": ["train", "extra"], "test": ["test"]}}
    task = load_task(make(hub_task), None)
    assert calls[:3] == [("some/stars", "c", "abc", s) for s in ("train", "extra", "test")]
    assert [len(part) for part in task.datasets["A"].splits.values()] == [30, 10, 20]
    train = task.datasets["G"].splits["train"]
    assert all((int(text.split()[1]) % 2) == label for text, label in zip(train.texts, train.labels, strict=True))
    assert set(task.datasets["T"].splits["valid"].labels.tolist()) == {-1}
    hub_task["datasets"]["G"]["hub"]["where"] = {"kind": ["y", "elsewhere"]}
    assert sum(len(part) for part in load_task(make(hub_task), None).datasets["G"].splits.values()) == 10


def test_hub_texts_have_class_numbers(hub_task, make, monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "star": datasets.ClassLabel(names=["n", "p"])})
    rows = {"text": [f"row {i}" for i in range(30)], "star": [0, 1, -1] * 10}
    made = datasets.Dataset.from_dict(rows, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    for data in hub_task["datasets"].values():
        data |= {"labels": {"0": "bad", "1": "good"}, "drop": ["-1"]}
    assert sum(len(part) for part in load_task(make(hub_task), None).datasets["A"].splits.values()) == 20
    hub_task["datasets"]["A"]["drop"] = []
    with refuses():
        load_task(make(hub_task), None)


def test_hub_texts_require_source_and_columns(hub_task, make, calls):
    hub_task["datasets"]["A"]["hub"]["columns"]["label"] = "unred"
    with refuses():
        load_task(make(hub_task), None)
    hub_task["datasets"]["A"]["hub"] = None
    with refuses():
        load_task(make(hub_task), None)


@pytest.mark.parametrize("problem", [ConnectionError("no\nnetwork"), datasets.exceptions.DatasetNotFoundError("x")])
def test_hub_error_is_one_line(hub_task, make, monkeypatch, problem):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with refuses():
        load_task(make(hub_task), None)


def test_hub_branch_is_reported_once_per_data_set(hub_task, make, calls):
    for data in hub_task["datasets"].values():
        data["hub"] |= {"revision": "main", "splits": {"pool": ["train", "extra"]}}
    notes = [note for note in load_task(make(hub_task), None).notes if "branch" in note]
    assert len(notes) == 3 and notes[0].startswith("task.datasets.A.hub.revision=main is a branch of some/stars")
