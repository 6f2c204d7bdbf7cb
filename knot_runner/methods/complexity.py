"""Rademacher complexity of a student's logit functions, for classes that are declared; without one it is infinite.

``last_layer``: the encoder as if it had been fixed before the texts were seen, and all last layers with rows no longer
than the longest found. No guarantee for KNOT, which trains the encoder on the same texts, and chooses that length after
seeing them. ``norms``: all networks of the student's depth whose layers are no larger than its own, for multi-layer
perceptrons. Attention and LayerNorm have no comparable simple formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from knot_runner.config.settings import MlpSettings
from knot_runner.config.settings.networks import CustomSettings
from knot_runner.models.network import Network

#: Draws of random signs.
SIGN_DRAWS = 200


def last_layer_complexity(features: Tensor, head: Tensor, draws: torch.Generator) -> dict[str, float]:
    """R^ of {x -> <w, phi(x)>: ||w||_2 <= B} on ``features`` phi [N, d], with B that of ``head`` [C, d].

    R^ = B / N E||sum_i s_i phi_i||_2 over random signs s, of which ``SIGN_DRAWS`` are drawn; it is at most
    B / N sqrt(sum ||phi_i||^2) by Jensen's inequality.

    Returns:
        ``value``: R^ of the sample, with its Monte-Carlo standard ``error``; ``upper``: what it is at most; ``norm``:
        B, the length of the last layer's longest row, bias included.
    """
    phi, count = features.double(), len(features)
    norm = float(head.double().norm(dim=1).max())
    lengths = torch.empty(SIGN_DRAWS, dtype=torch.float64)
    for i in range(SIGN_DRAWS):
        signs = torch.randint(0, 2, (count,), generator=draws).double() * 2 - 1
        lengths[i] = (signs @ phi).norm()
    scale = norm / count
    return {
        "value": scale * float(lengths.mean()),
        "error": scale * float(lengths.std()) / math.sqrt(SIGN_DRAWS),
        "upper": scale * float(phi.norm()),
        "norm": norm,
    }


def norm_complexity(inputs: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> float:
    """At most R_N of ReLU networks with layers no larger than ``layers`` (weight [b, a], bias [b]; the last one is the
    head, of which one row counts) on ``inputs`` [N, a] no longer than the longest.

    Golowich, Rakhlin & Shamir 2018, Theorem 1 (from memory): B_x prod_j M_F(j) (sqrt(2 log 2 depth) + 1) / sqrt N.
    A bias is a weight of one more input that is always 1, which every layer hands on.
    """
    radius = math.sqrt(float(inputs.double().flatten(1).square().sum(1).max()) + 1)
    product = 1.0
    for weight, bias in layers[:-1]:
        product *= math.sqrt(float(weight.double().square().sum() + bias.double().square().sum()) + 1)
    weight, bias = layers[-1]
    product *= float(affine_matrix(weight, bias).norm(dim=1).max())
    return radius * product * (math.sqrt(2 * math.log(2) * len(layers)) + 1) / math.sqrt(len(inputs))


def affine_matrix(weight: Tensor, bias: Tensor) -> Tensor:
    """A layer as one matrix [b, a + 1], in float64, for inputs with a 1 behind them."""
    return torch.cat([weight.double(), bias.double()[:, None]], dim=1)


def dense_layers(weights: Mapping[str, Tensor], head: str) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of a multi-layer perceptron's hidden layers in order, and of its ``head``."""
    names = [f"layers.{i}." for i in range(sum(name.startswith("layers.") for name in weights) // 2)]
    return [(weights[f"{name}weight"], weights[f"{name}bias"]) for name in [*names, head]]


def undeclared(network: Network) -> dict[str, str]:
    """Complexity -> why it is not defined for a student of this ``network``; those that are not named are defined."""
    spec = network.spec
    if isinstance(spec, CustomSettings):
        why = f"model {spec.name} declares no class of functions, and without one the complexity is infinite"
        return {"last_layer": why, "norms": why}
    if getattr(spec, "output", None) == "softmax":
        why = f"model {spec.name} ends in a softmax, so what is distilled is no linear function of its last features"
        return {"last_layer": why, "norms": why}
    if not isinstance(spec, MlpSettings):
        layers = "attention and LayerNorm" if network.reads_texts else "convolutions"
        return {"norms": f"no simple formula in the norms of the layers is known for {layers}"}
    return {}
