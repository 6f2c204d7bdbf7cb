"""KNOT on images, through the command line: against a plain float64 reimplementation, and what it leaves behind."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import BiasSettings
from knot_runner.data.images.load import load_images
from knot_runner.data.parties import image_parties
from knot_runner.data.tasks import Images
from knot_runner.models.network import Network, build_network, feature_reader
from knot_runner.pipelines.federations.images import random_images
from tests.golden.messages import refused
from tests.oracles.plain_knot import PlainKnot
from tests.tiny import TINY_PARTIES, replaced


def run(tmp_path, *overrides):
    """(result, folder) of the tiny run."""
    assert main([*replaced(TINY_PARTIES, *overrides), f"paths.out={tmp_path}"]) == 0
    (file,) = Path(tmp_path).glob("*/*/*/result.json")
    return json.loads(file.read_text()), file.parent


def plain(*overrides):
    """The same by :class:`PlainKnot`."""
    (job,) = compose_jobs(replaced(TINY_PARTIES, *overrides), None)
    settings = job.settings
    task = load_images(settings.task, None)
    parties = image_parties(task, settings.partition, settings.shares, settings.seed)
    network = Network(settings.model, tuple(settings.task.shape), len(task.classes))
    noise = random_images(parties.datasets["transfer"].splits["train"], job.method.bias, settings.seed)
    return PlainKnot(job, parties, network, noise).run()


@pytest.mark.parametrize("weighting", ["a", "d", "u", "e"])
@pytest.mark.parametrize("loss", ["entropy", "sinkhorn"])
def test_it_equals_a_plain_float64_loop(loss, weighting, tmp_path):
    overrides = [f"method={loss}_{weighting}"]
    if weighting == "e":  # biases from what they are said to be from
        overrides += ["method.bias.noise=shuffled", "seed=1"]
    if loss == "sinkhorn":  # regularised, since the gradient of the limit jumps where p passes q
        overrides += ["task.geometry=superclasses", "method.loss.solver=newton", "method.loss.epsilon=0.5"]
    _, folder = run(tmp_path, *overrides)
    found = load_file(folder / "predictions.safetensors")["server.probabilities"].numpy()
    wanted = plain(*overrides)
    before = load_file(folder / "predictions.safetensors")["before/server.probabilities"].numpy()
    assert np.abs(found - before).max() > 0.02  # it has learnt
    np.testing.assert_allclose(found, wanted, atol=5e-6)


@pytest.mark.parametrize("noise", ["uniform", "shuffled"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_random_images(noise, dtype):
    draw = np.random.default_rng(0)
    pixels = draw.integers(1, 5, (20, 3, 4, 5)).astype(dtype)
    found = random_images(Images(pixels, np.zeros(20, int)), BiasSettings(1, 1, 50, noise), 3)
    assert found.pixels.shape == (50, 3, 4, 5) and found.pixels.dtype == dtype and set(found.labels) == {-1}
    again = random_images(Images(pixels, np.zeros(20, int)), BiasSettings(1, 1, 50, noise), 3)
    other = random_images(Images(pixels, np.zeros(20, int)), BiasSettings(1, 1, 50, noise), 4)
    assert (found.pixels == again.pixels).all() and (found.pixels != other.pixels).any()
    if noise == "uniform":
        top = 255 if dtype == np.uint8 else 1
        assert found.pixels.min() < 0.02 * top and found.pixels.max() > 0.98 * top
        return
    columns = {tuple(sorted(map(tuple, image.reshape(3, -1).T))) for image in pixels}
    shuffled = [image.reshape(3, -1).T for image in found.pixels]
    assert all(tuple(sorted(map(tuple, image))) in columns for image in shuffled)  # channels stay together
    assert len({image.tobytes() for image in found.pixels}) > 45


def test_features_are_what_the_head_reads():
    (job,) = compose_jobs(TINY_PARTIES, None)
    network = Network(job.settings.model, (1, 8, 8), 10)
    model = build_network(network)
    x = torch.rand(3, 1, 8, 8)
    features = feature_reader(model, network)(x=x)
    torch.testing.assert_close(model.head(features), model(x))


@pytest.mark.parametrize("overrides", [
    ["partition.server=0.6", "partition.transfer=0.5"], ["partition.server=1.5"], ["method.loss.solver=line"],
    ["partition.clients=200"], ["training.distil.max_length=9"], ["model=bert_tiny"],
], ids=" ".join)  # fmt: skip
def test_what_does_not_fit_is_one_line(overrides, tmp_path, capsys):
    refused(capsys, *replaced(TINY_PARTIES, *overrides), f"paths.out={tmp_path}")


def test_teachers_take_the_tasks_augment_and_the_student_none(tmp_path):
    """Soft labels are of the images as they are."""
    _, plain_folder = run(tmp_path / "plain")
    run(tmp_path / "cropped", "task.augment=crop_flip")
    for stage, same in (("local", False), ("pretrain", False)):
        keys = [
            {path.name for path in (tmp_path / out / "artefacts" / stage).iterdir()} for out in ("plain", "cropped")
        ]
        assert (keys[0] == keys[1]) == same
    found = [next((tmp_path / out / "artefacts" / "distil").glob("*/info.json")) for out in ("plain", "cropped")]
    losses = [[row["loss"] for row in json.loads(file.read_text())["epochs"]] for file in found]
    assert losses[0] != losses[1]
