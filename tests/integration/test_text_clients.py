"""Clients of text tasks by the columns of their files, such as speakers, in written and real files."""

import json

import pytest

from knot_runner import compose
from knot_runner.data.images import make_partition
from knot_runner.data.load import load_task
from knot_runner.data.pools import pool_texts
from tests.runs import run
from tests.tiny import TINY_TEXTS, replaced

#: emotions of MELD as its file names them
MOODS = ["anger", "joy", "neutral", "sadness", "surprise"]


def spoken(path, speakers, sad):
    """Write a csv like MELD's: the given number of rows per mood for ``speakers``, and twelve long ones for ``sad``."""
    lines = ["Utterance,Speaker,Emotion,Dialogue_ID"]
    lines += [f"{who} said {mood} {k},{who},{mood},{k}"
              for who, times in speakers.items() for k in range(times) for mood in MOODS]  # fmt: skip
    lines += [f"{'so sad ' * 40}{k},{sad},sadness,{k}" for k in range(12)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_speakers_of_files_are_clients(tmp_path):
    for split in ("train", "valid", "test"):
        spoken(tmp_path / "meld" / f"{split}.csv", {"Ann": 4, "Bo": 4, "Cy": 1}, sad="Di")
    for split in ("train", "validation", "test"):
        folder = tmp_path / "dailydialog" / split
        folder.mkdir(parents=True)
        (folder / f"dialogues_{split}.txt").write_text("Well . __eou__ Good . __eou__\n" * 40)
        (folder / f"dialogues_emotion_{split}.txt").write_text("0 4\n" * 40)
    files = ",".join(f"{split}:[{{path:meld/{split}.csv}}]" for split in ("train", "valid", "test"))
    words = replaced(
        TINY_TEXTS, "method=fedavg", "partition.by=speaker", "partition.least=10", "task.max_examples=null",
        "task.max_length=32", "task.source=local", "task.missing=skip", f"paths.data_dir={tmp_path}",
        f"task.datasets.MELD.local.files={{{files}}}",
    )  # fmt: skip
    record = run(tmp_path / "out", *words)
    dealt, result = json.loads((record.folder / "partition.json").read_text()), record.result
    assert dealt["clients"] == ["MELD Ann", "MELD Bo", "MELD Di"] and dealt["test"] == [20, 20, 12]
    assert dealt["train"] == [[4] * 5] * 2 + [[0, 0, 0, 12, 0]]
    notes = " ".join(result["notes"])
    assert "left out 60 training examples and 60 test examples without a speaker" in notes
    assert "partition.least=10: left out 1 of 4 speakers, which have fewer training examples" in notes
    assert "warning: MELD Di has training examples of one class only (12 of class sadness)" in notes
    assert "task.max_length=32: 10% of the training texts reach it; longer texts are truncated" in notes


@pytest.mark.real_data
@pytest.mark.parametrize(("task", "by", "least", "clients", "first"), [
    ("erc", "speaker", 100, 6, "MELD Chandler"),
    ("erc", "dialogue", 15, 321, "MELD 4"),
    ("sa", "reviewer", 6, 3, "Cell R000322"),
])  # fmt: skip
def test_natural_partition_finds_real_clients_by_column(data_root, task, by, least, clients, first):
    command = [f"task={task}", "task.source=local", "method=fedavg", "training=small", "partition=natural"]
    command += [f"partition.by={by}", f"partition.least={least}", "task.missing=skip", f"paths.data_dir={data_root}"]
    (job,) = compose(command)
    pool = pool_texts(load_task(job.settings.task, data_root), by)
    dealt = make_partition(job.settings.partition, pool, 0)
    assert len(dealt.names) == clients and dealt.names[0] == first
