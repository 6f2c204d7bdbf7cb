"""Distances between clients and between data sets as runs: their record, the shared artifact, and bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from knot_runner.composing.commands import compose_all
from knot_runner.data.images import Images, ImageTask
from knot_runner.data.images.load import read_digits
from knot_runner.engine.commit import Commits
from knot_runner.papers.fedwad import matrix
from knot_runner.pipelines import clustered
from knot_runner.pipelines.context import RunContext
from knot_runner.transport.otdd.statistics import LabeledSamples
from tests.golden.messages import refuses
from tests.oracles.distances import CLIENTS, result_of
from tests.oracles.transport.otdd.pair import exact_otdd
from tests.runs import run
from tests.tiny import SETS


def context(out: Path, *overrides: str) -> RunContext:
    (job,), _ = compose_all([*SETS, f"paths.output_dir={out}", *overrides])
    return RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, lambda _: None)


def test_distances_between_stand_ins_are_exact_otdd(tmp_path):
    result = run(tmp_path, *SETS, "method.otdd.solver=exact", "method.otdd.samples=10000").result
    assert result["kind"] == "matrix" and result["pairs"] == 6 and "groups" not in result
    assert result["names"] == ["digits", "other digits", "digits turned", "digits inverted"]
    assert result["sizes"] == [450, 449, 449, 449]
    digits = read_digits([1, 8, 8])
    normal = (digits.pixels.reshape(-1, 64) / 255 - 0.1307) / 0.3081
    plain, other = (LabeledSamples(normal[i::4], digits.labels[i::4]) for i in (0, 1))
    (job,), _ = compose_all(SETS)
    near, *far = result["matrix"][0][1:]
    assert near == pytest.approx(exact_otdd(plain, other, job.method.otdd), rel=1e-10)
    assert near < 0.5 * min(far)  # two draws of the same digits are the nearest


def test_clients_of_one_planted_group_are_near(tmp_path):
    result = run(tmp_path, *CLIENTS).result
    found, groups = np.array(result["matrix"]), np.array(result["groups"])
    alike = (groups[:, None] == groups) & ~np.eye(12, dtype=bool)
    assert result["names"][11] == "client 11" and sum(result["sizes"]) > 200
    assert found[alike].max() < found[groups[:, None] != groups].min()
    np.testing.assert_array_equal(found, found.T)
    assert not np.diag(found).any()


def test_matrix_runs_on_same_samples_share_artifact(tmp_path, monkeypatch):
    one = run(tmp_path, *SETS, "method.otdd.samples=500").result
    (first,) = tmp_path.glob("artifacts/distances/*")
    assert sorted(path.name for path in first.iterdir()) == ["info.json", "tensors.safetensors"]
    monkeypatch.setattr(clustered, "computed_distances", None)  # whoever computes again fails
    other = run(tmp_path, *SETS, "method.otdd.samples=600").result
    assert one["matrix"] == other["matrix"] and one["artifact"] == other["artifact"] == first.name


def key_of(one: RunContext) -> str:
    task, parts = matrix.clients_data(one)
    seed, otdd = one.settings.seed, one.method.otdd
    return clustered._key(clustered.labeled(one, otdd, task, parts.train, seed), otdd, task.digest, seed)


@pytest.mark.parametrize("change", [
    "seed=1", "method.otdd.part=diagonal", "method.otdd.fedwad.t=random", "method.otdd.samples=31", "task.std=[0.3]",
])  # fmt: skip
def test_distances_of_other_settings_are_another_artifact(tmp_path, change):
    assert key_of(context(tmp_path)) != key_of(context(tmp_path, change))


def test_exact_distances_ignore_fedwad_settings(tmp_path):
    exact = [context(tmp_path, "method.otdd.solver=exact", f"method.otdd.fedwad.support={s}") for s in (5, 6)]
    assert key_of(exact[0]) == key_of(exact[1])


def task_of(pixels: np.ndarray) -> ImageTask:
    images = Images(pixels, np.arange(len(pixels)) % 2)
    return ImageTask("t", ["a", "b"], None, images, images.take(np.arange(0)), [0.5], [0.25], "local")


def test_labeled_draws_by_seed_and_client_alone(tmp_path):
    one = context(tmp_path)
    task = task_of(np.random.default_rng(0).random((90, 1, 2, 2), np.float32))
    rows = [np.arange(0, 40), np.arange(40, 60), np.arange(50, 90)]
    first, second, third = clustered.labeled(one, one.method.otdd, task, rows, 3)
    assert [len(found.labels) for found in (first, second, third)] == [30, 20, 30]
    expected = (task.train.pixels[rows[1]].astype(float) - 0.5) / 0.25
    np.testing.assert_allclose(second.points, expected.reshape(20, 4))
    np.testing.assert_array_equal(second.labels, task.train.labels[40:60])
    alone, *_ = clustered.labeled(one, one.method.otdd, task, rows[:1], 3)
    np.testing.assert_array_equal(alone.points, first.points)
    other, *_ = clustered.labeled(one, one.method.otdd, task, rows[:1], 4)
    assert not np.array_equal(other.points, first.points)
    assert len(np.unique(first.points, axis=0)) == 30  # none is drawn twice


def test_labeled_returns_codes_with_encoder(tmp_path):
    one = context(
        tmp_path, "+method.otdd.encoder={name: e, kind: dense, sizes: [6, 3], epochs: 0, batch_size: 8, lr: 0.1}"
    )
    task = task_of(np.random.default_rng(0).random((20, 1, 4, 4), np.float32))
    (found,) = clustered.labeled(one, one.method.otdd, task, [np.arange(20)], 0)
    assert found.points.shape == (20, 3) and np.ptp(found.points, axis=0).min() > 0


def test_labeled_rejects_clients_with_nan_or_no_images(tmp_path):
    one, pixels = context(tmp_path), np.zeros((20, 1, 2, 2), np.float32)
    pixels[15, 0, 1, 1] = np.nan
    for rows in ([np.arange(10), np.arange(10, 20)], [np.arange(0)]):
        with refuses():
            clustered.labeled(one, one.method.otdd, task_of(pixels), rows, 0)


def test_matrix_run_rejects_one_or_too_many_clients(tmp_path, monkeypatch):
    words = [word for word in CLIENTS if not word.startswith("partition")]
    with refuses():
        run(tmp_path, *words, "partition=centralized")
    monkeypatch.setattr(matrix, "MAX_LABELS", 11)
    with refuses():
        run(tmp_path, *CLIENTS)
    with refuses():
        compose_all(["task=image_sets", "method=fedavg"])


@pytest.mark.real_data
def test_matrix_of_real_data_sets(tmp_path, data_root):
    small = ["method.otdd.samples=60", "method.otdd.fedwad.support=5", "method.otdd.fedwad.iterations=3"]
    local = ["task.source=local", "task.missing=skip", f"paths.data_dir={data_root}"]
    result = run(tmp_path, "task=image_sets", *small, *local, "hardware.num_workers=1").result
    assert any("kmnist: left out" in note for note in result["notes"])
    assert result["names"] == ["mnist", "usps", "fashionmnist"] and result["sizes"] == [60, 60, 60]
    assert min(result["matrix"][i][j] for i, j in ((0, 1), (0, 2), (1, 2))) > 0


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


def test_matrix_run_resumes_from_commit_between_pairs(tmp_path, monkeypatch):
    run(tmp_path / "alone", *CLIENTS)
    save, calls = Commits.save, []

    def dying(self, *work):
        calls.append(save(self, *work))
        if len(calls) == 3:
            raise Killed
        return calls[-1]

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Commits, "save", dying)
        patch.setattr(Commits, "due", lambda self: True)
        run(tmp_path / "killed", *CLIENTS)
    (record,) = tmp_path.glob("killed/artifacts/distances/*/commit.json")
    state = load_file(record.parent / json.loads(record.read_text())["file"])["matrix"]
    committed = set(map(tuple, np.argwhere(np.isfinite(state)).tolist()))
    compute, known = clustered.computed_distances, []
    monkeypatch.setattr(clustered, "computed_distances", lambda *given: known.append(set(given[4])) or compute(*given))
    run(tmp_path / "killed", *CLIENTS)
    assert 3 <= len(committed) < 66 and known == [committed]
    assert result_of(tmp_path / "killed")["matrix"] == result_of(tmp_path / "alone")["matrix"]
    assert {path.name for path in record.parent.iterdir()} == {"info.json", "tensors.safetensors"}
