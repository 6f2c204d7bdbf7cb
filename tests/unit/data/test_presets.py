"""The task presets: complete, and right on the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from knot_runner.config.settings import TaskSettings
from knot_runner.data.load import load_task
from tests.golden.messages import refuses


def sizes(preset, name: str, root: Path, **changes) -> tuple[dict[str, list[int]], list[str]]:
    settings = preset(name, source="local", missing="skip", **changes)
    without_absent_files(settings, root)
    task = load_task(settings, root)
    return {n: [len(part) for part in data.splits.values()] for n, data in task.datasets.items()}, task.notes


def without_absent_files(settings: TaskSettings, root: Path) -> None:
    """Take single files that are not there out of the settings: half a data set is an error."""
    for data in settings.datasets.values():
        for split, files in data.local.files.items():
            there = [file for file in files if (root / file.path).is_file()]
            data.local.files[split] = there or files


@pytest.mark.thorough
@pytest.mark.real_data
def test_emotion_counts(preset, data_root: Path) -> None:
    made, notes = sizes(preset, "erc", data_root)
    assert made["MELD"] == [9450, 1047, 2492]  # Table 1
    quarters = [made[f"DyDa{i}"] for i in range(4)]
    for split in (0, 1):
        rows = [quarter[split] for quarter in quarters]
        assert max(rows) - min(rows) <= 1
    assert [len(quarter) for quarter in quarters] == [3, 3, 3, 2]
    assert notes == ["IEMOCAP: left out, iemocap/train.csv, iemocap/valid.csv, iemocap/test.csv not there"]


@pytest.mark.thorough
@pytest.mark.real_data
def test_quarters_follow_each_other(preset, data_root: Path) -> None:
    task = load_task(preset("erc", source="local", missing="skip"), data_root)
    ends = [task.datasets[f"DyDa{i}"].splits["train"].texts for i in range(4)]
    whole = preset("erc", source="local", missing="skip")
    whole.datasets["DyDa0"].chunk = None
    assert load_task(whole, data_root).datasets["DyDa0"].splits["train"].texts == sum(ends, [])


@pytest.mark.real_data
def test_sentiment_counts(preset, data_root: Path) -> None:
    made, notes = sizes(preset, "sa", data_root)
    assert made["Food"] == [3500, 510, 990]
    assert made["Cell"] == made["Cloths"] == made["Toys"] == [3500, 510, 990]
    assert made["Grocery"] == [1796, 262]
    assert notes == []


@pytest.mark.thorough
@pytest.mark.real_data
def test_inference_counts(preset, data_root: Path) -> None:
    made, _ = sizes(preset, "nli", data_root)
    assert made["SNLI"][0] == 8569
    genres = [made[name] for name in ("Fic", "Gov", "Slate", "Tele", "Trv")]
    matched = [1973, 1945, 1955, 1966, 1976]  # knot.md 1.6: Table 1 less the 9,832 mismatched rows
    assert [valid + test for _, valid, test in genres] == matched
    assert all(0 <= test - valid <= 1 for _, valid, test in genres)
    assert sum(made["ANLI"]) < 3198 + 3200
    with refuses():
        load_task(preset("nli", source="local"), data_root)


@pytest.mark.real_data
def test_inference_without_the_files_that_a_smaller_copy_lacks(preset, data_root: Path) -> None:
    """Named one by one, the other files are what is read."""
    task = load_task(preset("nli", source="local", missing="skip", limit=50), data_root)
    mismatched = "multinli/multinli_1.0_dev_mismatched.jsonl: not there"
    for name in ("Fic", "Gov", "Slate", "Tele", "Trv"):
        assert f"{name}: read without {mismatched}" in task.notes
    rounds = ", ".join(f"anli_v1.0/R{number}/train.jsonl" for number in (1, 2, 3))
    assert f"ANLI: read without {rounds}: not there" in task.notes
    assert [len(task.datasets["Fic"].splits[split]) for split in ("train", "valid", "test")] == [50, 50, 50]
