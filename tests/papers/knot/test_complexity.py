"""Complexities in the generalization bound against what they are suprema of, and models that have none."""

import itertools
import math

import numpy as np
import pytest
import torch

from knot_runner import compose
from knot_runner.config.settings.networks import CustomSettings, MlpSettings
from knot_runner.models.network import Network
from knot_runner.papers.knot import bound_terms as complexity


def test_last_layer_complexity_estimates_supremum_over_class():
    """Brute force over all signs of six texts and 2,000 directions of w in the plane."""
    draws = np.random.default_rng(8)
    features, head = torch.from_numpy(draws.normal(size=(6, 2))), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    angles = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    ball = 5.0 * np.stack([np.cos(angles), np.sin(angles)])
    signs = np.array(list(itertools.product((-1, 1), repeat=6)))
    wanted = (signs @ features.numpy() @ ball / 6).max(1).mean()
    found = complexity.last_layer_complexity(features, head, torch.Generator().manual_seed(0))
    assert found["norm"] == 5.0 and 0 < found["error"] < 0.1 * found["value"]
    assert abs(found["value"] - wanted) < 4 * found["error"]
    assert found["upper"] == pytest.approx(5 / 6 * float(features.square().sum().sqrt())) and found["upper"] > wanted
    again = complexity.last_layer_complexity(features, head, torch.Generator().manual_seed(0))
    other = complexity.last_layer_complexity(features, head, torch.Generator().manual_seed(1))
    assert again == found and other["value"] != found["value"]


def test_norm_complexity_by_hand():
    inputs = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    hidden = (torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([0.0, 2.0]))
    head = (torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0]))
    wanted = math.sqrt(10) * math.sqrt(3 + 4 + 1) * math.sqrt(5) * (math.sqrt(2 * math.log(2) * 2) + 1) / math.sqrt(2)
    assert complexity.norm_complexity(inputs, [hidden, head]) == pytest.approx(wanted)


def test_norm_complexity_exceeds_value_of_sampled_networks():
    """The supremum over 3,000 networks with layers no larger is below it."""
    draws = np.random.default_rng(9)
    inputs = torch.from_numpy(draws.normal(size=(20, 3)))
    layers = [(torch.from_numpy(draws.normal(size=(4, 3))), torch.zeros(4)),
              (torch.from_numpy(draws.normal(size=(1, 4))), torch.zeros(1))]  # fmt: skip
    signs = torch.from_numpy(draws.choice([-1.0, 1.0], size=(50, 20)))
    most = torch.full((50,), -torch.inf, dtype=torch.float64)
    for _ in range(3000):
        one = [torch.from_numpy(draws.normal(size=weight.shape)) for weight, _ in layers]
        one = [w * weight.norm() / w.norm() for w, (weight, _) in zip(one, layers, strict=True)]
        logits = torch.relu(inputs @ one[0].T) @ one[1].T
        most = torch.maximum(most, signs @ logits[:, 0] / 20)
    assert float(most.mean()) < complexity.norm_complexity(inputs, layers)


def test_dense_layers_reads_layers_in_order():
    weights = {f"layers.{i}.{part}": torch.full((1,), float(i)) for i in range(11) for part in ("weight", "bias")}
    weights |= {"head.weight": torch.full((1,), -1.0), "head.bias": torch.full((1,), -2.0)}
    found = complexity.dense_layers(weights, "head.")
    assert [float(weight) for weight, _ in found] == [*range(11), -1] and float(found[-1][1]) == -2
    assert complexity.affine_matrix(torch.eye(2), torch.tensor([5.0, 6.0])).tolist() == [[1, 0, 5], [0, 1, 6]]


def test_undeclared_explains_models_without_declared_class():
    own = CustomSettings(**{"kind": "custom", "name": "mine", "target": "x:y", "head": "out"})
    found = complexity.undeclared(Network(own, (1, 8, 8), 3))
    assert set(found) == {"last_layer", "norms"} and "declares no class" in found["norms"]
    (text,) = compose([])
    found = complexity.undeclared(Network(text.settings.model, 600, 5))
    assert set(found) == {"norms"} and "attention and LayerNorm" in found["norms"]
    dense = MlpSettings("mlp", "dense", [4], "logits")
    assert complexity.undeclared(Network(dense, (1, 8, 8), 3)) == {}
    dense = MlpSettings("mlp", "dense", [4], "softmax")
    assert "ends in a softmax" in complexity.undeclared(Network(dense, (1, 8, 8), 3))["last_layer"]
