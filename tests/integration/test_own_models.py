"""A custom image model: ``nn.Sequential``, frozen layers, and batch normalization of a single example."""

import pytest
import torch
from torch import nn

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.models.network import Network, build_network
from tests.runs import run
from tests.tiny import TINY_IMAGES, replaced

OWN = CustomSettings("custom", "own", "frozen_model:frozen", "4")
MODEL = """
from torch import nn

def frozen(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
    model[1].requires_grad_(False)
    return model
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Overrides of runs with batches of 3, of which the last one has a single example."""
    tmp_path = tmp_path_factory.mktemp("own")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("{kind: custom, name: own, target: 'frozen_model:frozen', head: '4'}")
    (tmp_path / "frozen_model.py").write_text(MODEL)
    plugin = f"plugins=['{tmp_path / 'frozen_model.py'}']"
    own = ["model=own", "++model.options={}", plugin, f"--config-dir={tmp_path}"]
    small = [word for word in TINY_IMAGES if not word.startswith("model.")]
    return [*replaced(small, "training.batch_size=3", "training.rounds=2", "training.clients_per_round=6"), *own]


@pytest.mark.parametrize("method", ["apfl", "fedala", "feddf"])
def test_run_keeps_frozen_layers_as_they_begin(method, words, tmp_path):
    record = run(tmp_path / "out", *words, f"method={method}")
    frozen = [value for name, value in record.tensors().items() if name.endswith("1.weight")]
    assert all(row["steps"] for row in record.rows) and record.result["status"] == "done"
    assert frozen and all(torch.equal(one, frozen[0]) for one in frozen)


def test_network_normalizes_one_example_by_running_statistics(words, tmp_path):
    run(tmp_path, *words)  # which loads the plug-in
    model = build_network(Network(OWN, (1, 8, 8), 10)).train()
    model(x=torch.randn(6, 1, 8, 8))
    x = torch.randn(1, 1, 8, 8)
    before = model[2].running_mean.clone()
    found = model(x=x)
    assert model.training and model[2].training and torch.equal(model[2].running_mean, before)
    torch.testing.assert_close(found, nn.Sequential(*model).eval()(x))
