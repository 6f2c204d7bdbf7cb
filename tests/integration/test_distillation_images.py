"""KNOT on images equals a plain float64 implementation; its random images, augmentation and refusals."""

import json

import numpy as np
import pytest

from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.data.tasks import Images
from knot_runner.methods.weighting import random_images
from tests.golden.messages import refuses
from tests.oracles.plain_knot import plain_knot
from tests.runs import run
from tests.tiny import TINY_PARTIES, replaced


@pytest.mark.parametrize(("loss", "weighting"), [("entropy", "d"), ("sinkhorn", "e")])
def test_knot_on_images_matches_float64_loop(loss, weighting, tmp_path):
    overrides = [f"method={loss}_{weighting}"]
    if weighting == "e":  # biases from what they are said to be from
        overrides += ["method.bias.noise=shuffled", "seed=1"]
    if loss == "sinkhorn":  # regularized, since the gradient of the limit jumps where p passes q
        overrides += ["task.geometry=superclasses", "method.loss.solver=newton", "method.loss.epsilon=0.5"]
    words = replaced(TINY_PARTIES, *overrides)
    made = run(tmp_path, *words).tensors("predictions")
    found, before = (made[f"{when}server.probabilities"].numpy() for when in ("", "before/"))
    assert np.abs(found - before).max() > 0.02  # it has learned
    np.testing.assert_allclose(found, plain_knot(words), atol=5e-6)


@pytest.mark.parametrize("noise", ["uniform", "shuffled"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_random_images_of_a_noise(noise, dtype):
    draw = np.random.default_rng(0)
    pixels = draw.integers(1, 5, (20, 3, 4, 5)).astype(dtype)
    given, options = Images(pixels, np.zeros(20, int)), BiasSettings(1, 1, 50, noise)
    found, again, other = (random_images(given, options, seed) for seed in (3, 3, 4))
    assert found.pixels.shape == (50, 3, 4, 5) and found.pixels.dtype == dtype and set(found.labels) == {-1}
    assert (found.pixels == again.pixels).all() and (found.pixels != other.pixels).any()
    if noise == "uniform":
        top = 255 if dtype == np.uint8 else 1
        assert found.pixels.min() < 0.02 * top and found.pixels.max() > 0.98 * top
        return
    columns = {tuple(sorted(map(tuple, image.reshape(3, -1).T))) for image in pixels}
    shuffled = [image.reshape(3, -1).T for image in found.pixels]
    assert all(tuple(sorted(map(tuple, image))) in columns for image in shuffled)  # channels stay together
    assert len({image.tobytes() for image in found.pixels}) > 45


@pytest.mark.parametrize("overrides", [
    ["partition.server=0.6", "partition.transfer=0.5"], ["partition.server=1.5"], ["method.loss.solver=line"],
    ["partition.num_clients=200"], ["training.distill.max_length=9"], ["model=bert_tiny"],
], ids=" ".join)  # fmt: skip
def test_image_distillation_rejects_invalid_settings(overrides, tmp_path):
    with refuses():
        run(tmp_path, *replaced(TINY_PARTIES, *overrides))


def test_augmentation_applies_to_teachers_only(tmp_path):
    """Soft labels are computed on images without augmentation, so only the teachers change the student."""
    places = tmp_path / "plain", tmp_path / "cropped"
    for place, words in zip(places, ([], ["task.augment=crop_flip"]), strict=True):
        run(place, *replaced(TINY_PARTIES, *words))
    for stage, count in (("local", 6), ("pretrain", 2)):
        assert len({path.name for place in places for path in (place / "artifacts" / stage).iterdir()}) == count
    found = [next((place / "artifacts" / "distill").glob("*/info.json")) for place in places]
    losses = [[row["loss"] for row in json.loads(file.read_text())["epochs"]] for file in found]
    assert losses[0] != losses[1]
