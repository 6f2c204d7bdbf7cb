"""Where classes of images lie: distances by hand, and settings that make none."""

import json

import numpy as np
import pytest

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.data.images.load import class_points, one_hot, superclass_points
from tests.golden.messages import refused
from tests.tiny import TINY_IMAGES


def distances(points):
    points = np.array(points)
    return np.linalg.norm(points[:, None] - points, axis=-1)


def test_superclasses_are_one_apart_within_and_two_across():
    found = distances(superclass_points(["a", "b", "c", "d"], {"late": ["b", "d", "c"], "first": ["a"]}))
    np.testing.assert_allclose(found, [[0, 2, 2, 2], [2, 0, 1, 1], [2, 1, 0, 1], [2, 1, 1, 0]], atol=1e-12)


def test_one_hot_labels_are_all_as_far():
    np.testing.assert_allclose(distances(one_hot(3)), np.sqrt(2) * (1 - np.eye(3)), atol=1e-12)


@pytest.mark.parametrize(
    "geometry, wanted", [("given", None), ("onehot", 10), ("superclasses", 12)], ids=["given", "onehot", "superclasses"]
)
def test_the_task_says_which(geometry, wanted):
    (job,) = compose_jobs(["task=cifar10", f"task.geometry={geometry}"], None)
    points = class_points(job.settings.task)
    assert (points and len(points[0])) == wanted


def test_a_federated_run_measures_it(tmp_path, capsys):
    """The same run, by its numbers, with a distance more."""
    plain, apart = tmp_path / "plain", tmp_path / "apart"
    assert main([*TINY_IMAGES, f"paths.out={plain}"]) == 0
    assert main([*TINY_IMAGES, "task.geometry=superclasses", f"paths.out={apart}"]) == 0
    (before,), (after,) = ([json.loads(f.read_text()) for f in out.glob("*/*/*/result.json")] for out in (plain, apart))
    assert "sd" not in before["metrics"] and 0 < after["metrics"]["sd"]["ALL"] < 1.01  # digits are all one superclass
    assert before["metrics"]["accuracy"] == after["metrics"]["accuracy"]
    assert before["run_id"] != after["run_id"]


@pytest.mark.parametrize("overrides", [
    ["task=mnist", "task.geometry=superclasses"], ["task=cifar10", "task.superclasses.animals=[cat]"],
    ["task=cifar10", "+task.superclasses.more=[cat]"], ["task=cifar10", "+task.superclasses.more=[zebra]"],
    ["task=mnist", "task.coordinates=" + str([[0.0]] * 10).replace(" ", "")],
], ids=lambda words: words[1][:40])  # fmt: skip
def test_what_makes_no_geometry_is_named(overrides, tmp_path, capsys):
    extra = [] if "mnist" in overrides[0] else ["task.geometry=superclasses"]
    refused(capsys, *overrides, *extra, f"paths.out={tmp_path}")
