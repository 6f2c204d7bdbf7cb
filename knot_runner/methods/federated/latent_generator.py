"""FedGen's generator: label -> inputs of a network's last layer, learnt from the clients' last layers alone.

The head of client k maps features z to logits W_k z + b_k. The generator minimises, over labels y drawn as often as the
clients have them and noise e, sum_k a_k(y) CE(W_k G(e, y) + b_k, y) with a_k(y) the share of client k in all examples
of y, plus ``diversity`` times exp(-mean_ij |e_i - e_j|^2 |G_i - G_j|), means over coordinates (the public code's loss).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.server_distillation import LatentGenerator
from knot_runner.engine.seeds import generator, seeded

#: In a method's state: its weights and running statistics, and Adam's state.
MODEL, ADAM = "generator/model.", "generator/adam."
#: What Adam keeps of each parameter.
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Head:
    """A client's last layer: ``weight`` [C, H], ``bias`` [C]; ``counts`` [C]: its examples of each label."""

    weight: Tensor
    bias: Tensor
    counts: Tensor


def new_generator(spec: LatentGenerator, classes: int, features: int, seed: int, dtype: torch.dtype) -> nn.Module:
    """Noise and a label's one-hot code [B, noise + C] -> features [B, H]; initialised from the run's seed."""
    with seeded(seed, "generator"):
        layers = nn.Linear(spec.noise + classes, spec.hidden), nn.Linear(spec.hidden, features)
    return nn.Sequential(layers[0], nn.BatchNorm1d(spec.hidden), nn.ReLU(), layers[1]).to(dtype)


def generated(model: nn.Module, noise: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Features [B, H] of ``noise`` [B, E] and ``labels`` [B]."""
    return model(torch.cat([noise, F.one_hot(labels, classes).to(noise.dtype)], 1))


def drawn_labels(counts: Tensor, number: int, draws: torch.Generator) -> Tensor:
    """Labels [number], each as likely as ``counts`` [C] says."""
    return torch.multinomial(counts.double(), number, replacement=True, generator=draws)


def drawn_noise(spec: LatentGenerator, number: int, dtype: torch.dtype, draws: torch.Generator) -> Tensor:
    """Uniform noise in [0, 1), [number, E] (public code)."""
    return torch.rand(number, spec.noise, generator=draws, dtype=torch.float64).to(dtype)


def heads_loss(features: Tensor, noise: Tensor, labels: Tensor, heads: list[Head], diversity: float) -> Tensor:
    """Returns the generator's loss on a batch: ``features`` [B, H] of ``noise`` [B, E] and ``labels`` [B]."""
    counts = torch.stack([head.counts for head in heads]).to(features.dtype)  # [K, C]
    shares = (counts / counts.sum(0).clamp_min(1))[:, labels]  # [K, B]
    total = features.new_zeros(())
    for head, share in zip(heads, shares, strict=True):
        logits = features @ head.weight.T + head.bias
        total = total + (share * F.cross_entropy(logits, labels, reduction="none")).mean()
    feature_distances = torch.cdist(features, features, p=1) / features.shape[1]
    noise_distances = (noise[:, None] - noise).square().mean(2)
    return total + diversity * torch.exp(-(noise_distances * feature_distances).mean())


def train_generator(
    spec: LatentGenerator, model: nn.Module, kept: dict[str, Tensor], heads: list[Head], seed: int, round: int
) -> tuple[dict[str, Tensor], float]:
    """The generator after the steps of ``round``, as tensors of a state, and its mean loss. ``model`` changes in place;
    ``kept``: the state before, which has Adam's from earlier rounds. Draws are keyed by (seed, round, step)."""
    parameters = list(model.parameters())
    optimiser = torch.optim.Adam(parameters, lr=spec.lr, weight_decay=spec.weight_decay)
    if f"{ADAM}0.step" in kept:
        own = {i: {name: kept[f"{ADAM}{i}.{name}"].clone() for name in MOMENTS} for i in range(len(parameters))}
        optimiser.load_state_dict({"state": own, "param_groups": optimiser.state_dict()["param_groups"]})
    counts, dtype = torch.stack([head.counts for head in heads]).sum(0), parameters[0].dtype
    model.train()
    losses = []
    for step in range(spec.steps):
        draws = generator(seed, "generator", round, step)
        labels, noise = drawn_labels(counts, spec.batch, draws), drawn_noise(spec, spec.batch, dtype, draws)
        loss = heads_loss(generated(model, noise, labels, len(counts)), noise, labels, heads, spec.diversity)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    state = model_tensors(model)
    for index, moments in optimiser.state_dict()["state"].items():
        state |= {f"{ADAM}{index}.{name}": torch.as_tensor(moments[name]).detach().clone() for name in MOMENTS}
    return state, sum(losses) / len(losses)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The generator's weights and running statistics, as a state has them."""
    return {f"{MODEL}{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}


def load_generator(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Undo :func:`model_tensors`, in place."""
    model.load_state_dict({name.removeprefix(MODEL): own for name, own in state.items() if name.startswith(MODEL)})
