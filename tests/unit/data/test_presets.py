"""The task presets on the real files."""

import pytest

from knot_runner.data.load import load_task
from tests.golden.messages import refuses
from tests.unit.data.text_tasks import preset

pytestmark = pytest.mark.real_data


def load(name, root, **changes):
    """The task without files that a smaller copy lacks, and the sizes of its splits."""
    settings = preset(name, source="local", missing="skip", **changes)
    for data in settings.datasets.values():
        for split, files in data.local.files.items():
            data.local.files[split] = [file for file in files if (root / file.path).is_file()] or files
    task = load_task(settings, root)
    return task, {name: [len(part) for part in data.splits.values()] for name, data in task.datasets.items()}


def test_emotion_preset_reads_real_files(data_root):
    task, sizes = load("erc", data_root)
    assert sizes["MELD"] == [9450, 1047, 2492]  # Table 1
    quarters = [sizes[f"DyDa{i}"] for i in range(4)]
    assert all(max(rows) - min(rows) <= 1 for rows in list(zip(*quarters, strict=False))[:2])
    assert [len(quarter) for quarter in quarters] == [3, 3, 3, 2]
    assert task.notes == [
        "IEMOCAP: left out, since these files are missing: iemocap/train.csv, iemocap/valid.csv, iemocap/test.csv"
    ]
    whole = preset("erc", source="local", missing="skip")
    whole.datasets["DyDa0"].chunk = None
    parts = [task.datasets[f"DyDa{i}"].splits["train"].texts for i in range(4)]
    assert load_task(whole, data_root).datasets["DyDa0"].splits["train"].texts == sum(parts, [])


def test_sentiment_preset_reads_real_files(data_root):
    task, sizes = load("sa", data_root)
    assert {tuple(sizes[name]) for name in ("Food", "Cell", "Cloths", "Toys")} == {(3500, 510, 990)}
    assert sizes["Grocery"] == [1796, 262] and task.notes == []


def test_inference_preset_reads_real_files(data_root):
    _, sizes = load("nli", data_root)
    genres = [sizes[name] for name in ("Fic", "Gov", "Slate", "Tele", "Trv")]
    matched = [1973, 1945, 1955, 1966, 1976]  # KNOT Table 1 less the 9,832 mismatched rows
    assert [valid + test for _, valid, test in genres] == matched
    assert all(0 <= test - valid <= 1 for _, valid, test in genres)
    assert sizes["SNLI"][0] == 8569 and sum(sizes["ANLI"]) < 3198 + 3200
    with refuses():
        load_task(preset("nli", source="local"), data_root)
