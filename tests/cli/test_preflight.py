"""Data that are missing: one line before the first job of a sweep, the same from ``check``, and nothing is written."""

import re

import pytest

from knot_runner import compose
from knot_runner.data.preflight import missing_data, no_data
from tests.golden.messages import refused
from tests.of_papers import of_papers

LEAF = '{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [0]}}, "num_samples": [1]}'


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.delenv("KNOT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def data(tmp_path):
    for part in ("train", "test"):
        folder = tmp_path / "data/femnist_digits" / part
        folder.mkdir(parents=True)
        (folder / "a.json").write_text(LEAF)
    return tmp_path / "data"


@pytest.mark.parametrize("words", of_papers(["experiment=chill/table1", "experiment=chill/sa task.source=hub"]))
def test_preflight_reports_missing_preset_data_once(out, capsys, words):
    refused(capsys, *words.split())
    assert not (out / "outputs").exists()


@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_preflight_stops_every_launcher_before_first_job(out, data, capsys, launcher):
    """Where only some of the jobs lack data, too."""
    grid = ["task=femnist,gld23k", "task.source=local", "method=fedavg", f"paths.data_dir={data}"]
    refused(capsys, "-m", *grid, f"hydra/launcher={launcher}")
    assert not (out / "outputs").exists()


def missing(root, *overrides):
    (job,) = compose([*overrides, "task.source=local", f"paths.data_dir={root}"])
    return missing_data(job.settings)


def touched(root, task):
    (job,) = compose([task, "task.source=local"])
    paths = [
        file.path for data in job.settings.task.datasets.values() for own in data.local.files.values() for file in own
    ]
    emotions = [path.replace("dialogues_", "dialogues_emotion_", 1) for path in paths if "dailydialog" in path]
    for path in (*paths, *emotions):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_texts_are_there_or_may_be_missing(tmp_path):
    touched(tmp_path, "task=erc")
    assert missing(tmp_path, "task=erc") is None
    for name in ("train", "valid", "test"):
        (tmp_path / f"iemocap/{name}.csv").unlink()
    assert "To run without data set IEMOCAP, use task.missing=[IEMOCAP]" in missing(tmp_path, "task=erc")
    assert missing(tmp_path, "task=erc", "task.missing=skip") is None
    (tmp_path / "iemocap/train.csv").touch()
    assert "Other files of data set IEMOCAP exist" in missing(tmp_path, "task=erc", "task.missing=skip")
    (tmp_path / "meld/train_sent_emo.csv").unlink()
    assert "(task.datasets.MELD.local.files)" in missing(tmp_path, "task=erc")


@pytest.mark.paper("fedwad")
def test_missing_data_reports_image_sets_unless_skipped(tmp_path):
    (tmp_path / "usps").mkdir()
    (tmp_path / "usps/zip.test.gz").touch()
    assert "mnist/train-images" in missing(tmp_path, "task=image_sets")
    assert missing(tmp_path, "task=image_sets", "task.missing=skip") is None


def test_images_in_a_folder_or_a_zip(tmp_path):
    path = tmp_path / "cifar10" / "cifar10_jpeg_subset.zip"
    assert missing(tmp_path, "task=cifar10") == f"{path}/train: file not found (data set cifar10)"
    path.parent.mkdir()
    path.touch()
    assert missing(tmp_path, "task=cifar10") is None


def test_missing_data_ignores_plugin_formats(tmp_path):
    (job,) = compose(["task=mnist", "task.source=local", f"paths.data_dir={tmp_path}"])
    job.settings.task.local.format = "of a plug-in"
    assert missing_data(job.settings) is None


@pytest.mark.parametrize(
    "overrides",
    of_papers([(["task=mnist"],), (["task=erc"],), (["task=gaussians"],), (["task=mnist", "task.source=hub"],)]),
)
def test_missing_data_returns_none_without_local_files(overrides):
    (job,) = compose([*overrides, "paths.data_dir=null"])
    assert missing_data(job.settings) is None and no_data([job.settings]) is None


def test_no_data_omits_data_set_for_own_task(tmp_path):
    (job,) = compose(["task=mnist", "task.name=mine", "task.source=local", f"paths.data_dir={tmp_path}"])
    line = no_data([job.settings, job.settings])
    assert re.search(r"This affects all 2 jobs\. Run 'knot-runner data' to see which files are needed", line)
