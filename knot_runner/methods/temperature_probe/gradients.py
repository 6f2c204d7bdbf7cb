"""How large gradients are at the input layer, image by image, at each temperature (FLex&Chill 3.1.1, Fig. 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings import ProbeSettings
from knot_runner.methods.temperature_probe.probed import Probed, ProbeProgress


def gradient_arrays(hp: ProbeSettings, probed: Probed, rows: Tensor, watch: ProbeProgress) -> dict[str, Tensor]:
    """``gradients.norm`` float32 [K, N] and ``gradients.right`` uint8 [N] of ``rows`` [N], on the CPU."""
    norms, right, done = [], [], 0
    for images, labels in probed.batches(rows):
        watch("gradient norms", done, len(rows), "")
        found, correct = gradient_norms(probed.model, images, labels, hp.temperatures, hp.gradient)
        norms.append(found.cpu())
        right.append(correct.cpu())
        done += len(labels)
    watch("gradient norms", done, done, "done")
    return {"gradients.norm": torch.cat(norms, 1), "gradients.right": torch.cat(right).to(torch.uint8)}


def gradient_norms(
    model: nn.Module, images: Tensor, labels: Tensor, temperatures: list[float], gradient: str
) -> tuple[Tensor, Tensor]:
    """Euclidean norm, per image, of the gradient of CE(z / T, y) at the input layer: [K, n]; who is right: bool [n].

    ``gradient=weights``: with respect to the weights (without bias) of the first linear or convolutional layer, whose
    gradient per image follows from that of the layer's output; ``pixels``: to the image. One forward pass serves all
    temperatures. The model must treat images one by one, as it does in evaluation mode.
    """
    seen: list[Tensor] = []
    layer = next(module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    images = images.detach().requires_grad_()
    with layer.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0].detach(), output))):
        logits = model(images)
    layer_input, layer_output = seen
    source = images if gradient == "pixels" else layer_output
    patches = None if gradient == "pixels" else _patches(layer, layer_input)
    norms = []
    for temperature in temperatures:
        down = logit_gradients(logits.detach(), labels, temperature)
        (found,) = torch.autograd.grad(logits, source, down, retain_graph=True)
        norms.append(found.flatten(1).norm(dim=1) if patches is None else _weight_norms(found, patches))
    return torch.stack(norms), logits.argmax(1) == labels


def logit_gradients(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """(softmax(z / T) - y) / T, the gradient of CE(z / T, y) with respect to z [n, C] (eq. 2).

    p - 1 of the true class is taken as minus the sum of the others, which keeps its digits where p rounds to 1.
    """
    truth = labels[:, None]
    others = torch.softmax(logits / temperature, 1).scatter(1, truth, 0.0)
    return others.scatter(1, truth, -others.sum(1, keepdim=True)) / temperature


def _patches(layer: nn.Linear | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Returns the inputs of each of the layer's L output positions: [n, L, inputs]; a linear layer has one position."""
    if isinstance(layer, nn.Linear):
        return inputs[:, None]
    return F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)


def _weight_norms(outputs: Tensor, patches: Tensor) -> Tensor:
    """Norms [n] of the weight gradients sum_l g_l x_l^T, from g [n, outputs, ...] and x [n, L, inputs]."""
    if patches.shape[1] == 1:  # a single product has the product of the norms
        return outputs.flatten(1).norm(dim=1) * patches.flatten(1).norm(dim=1)
    return (outputs.flatten(2) @ patches).flatten(1).norm(dim=1)
