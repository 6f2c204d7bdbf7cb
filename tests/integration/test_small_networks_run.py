"""Federated runs of the small families by every engine, from the command line."""

import json

import pytest
import torch
from safetensors.torch import load_file

from knot_runner.cli.main import main
from tests.tiny import TINY_IMAGES, replaced

SMALL = {
    "wrn_16_1": ["model.depth=10"],
    "vgg8": ["model.stages=[[4],[8,8]]", "model.pools=2"],
    "resnet8": ["model.width=4"],
    "cnn_4": [],
}
#: the smallest federated run, without its model
IMAGES = [word for word in TINY_IMAGES if not word.startswith("model.")]
SHORT = ["training.rounds=1", "training.epochs=1", "hardware.precision=float64"]


@pytest.mark.parametrize("model", SMALL)
def test_every_engine_ends_with_the_loops_weights(model, tmp_path, capsys):
    words = replaced([*IMAGES, f"model={model}", *SMALL[model]], *SHORT)
    weights = {}
    for engine in ("loop", "lean", "stacked"):
        out = tmp_path / engine
        assert main([*words, f"hardware.engine={engine}", f"paths.out={out}"]) == 0, capsys.readouterr().err
        (result,) = out.glob("*/*/*/result.json")
        assert json.loads(result.read_text())["model"] == model
        weights[engine] = load_file(result.parent / "model.safetensors")
    for engine in ("lean", "stacked"):
        for name, tensor in weights["loop"].items():
            torch.testing.assert_close(weights[engine][name], tensor, rtol=1e-9, atol=1e-12, msg=f"{engine}: {name}")
