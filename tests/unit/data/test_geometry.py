"""Where classes of images lie: distances by hand, and settings that make none."""

import numpy as np
import pytest

from knot_runner import compose
from knot_runner.data.images.load import class_points, one_hot, superclass_points
from tests.runs import run
from tests.tiny import TINY_IMAGES


def distances(points):
    points = np.array(points)
    return np.linalg.norm(points[:, None] - points, axis=-1)


def test_superclass_points_lie_one_or_two_apart():
    found = distances(superclass_points(["a", "b", "c", "d"], {"late": ["b", "d", "c"], "first": ["a"]}))
    np.testing.assert_allclose(found, [[0, 2, 2, 2], [2, 0, 1, 1], [2, 1, 0, 1], [2, 1, 1, 0]], atol=1e-12)


def test_one_hot_places_points_equally_far_apart():
    np.testing.assert_allclose(distances(one_hot(3)), np.sqrt(2) * (1 - np.eye(3)), atol=1e-12)


@pytest.mark.parametrize(("geometry", "wanted"), [("given", None), ("onehot", 10), ("superclasses", 12)])
def test_class_points_follow_the_geometry(geometry, wanted):
    (job,) = compose(["task=cifar10", f"task.geometry={geometry}"])
    points = class_points(job.settings.task)
    assert (points and len(points[0])) == wanted


def test_geometry_adds_semantic_distance_to_federated_run(tmp_path, fedavg_run):
    apart = run(tmp_path, *TINY_IMAGES, "method=fedavg", "training.lr=0.1", "task.geometry=superclasses").result
    plain = fedavg_run.result
    assert "sd" not in plain["metrics"] and 0 < apart["metrics"]["sd"]["ALL"] < 1.01  # digits are all one superclass
    assert plain["metrics"]["accuracy"] == apart["metrics"]["accuracy"] and plain["run_id"] != apart["run_id"]
