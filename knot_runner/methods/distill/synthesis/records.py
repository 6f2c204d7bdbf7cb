"""Records of a teacher's activations, and activations that are sampled from records (Lopes et al. 2017).

Records are statistics that the owner of the teacher's training data may release. A tap is a hidden layer or the logits.
For each class and tap, a record holds the mean and one of three kinds of spread:

- ``covariance``, only for the logits
- ``variance`` of every element
- the first principal ``axes``, each scaled by the standard deviation along the axis

Difference from the paper's spectral records: we use means per class, and principal axes instead of the graph Fourier
basis.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from knot_runner.engine.examples import ImageExamples
from knot_runner.engine.loop import EVALUATION_BATCH
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.taps import TapReader

#: Name under which the logits are recorded, next to the taps.
LOGITS = "logits"
#: Maximum number of images for the records of all classes, because all of their activations are in memory.
MOST_IMAGES = 5000
RecordsKind = Literal["top", "all", "spectral"]


def released_records(
    read: TapReader, examples: ImageExamples, classes: int, kind: RecordsKind, components: int
) -> Tensors:
    """Return float32 records of the activations at all taps.

    A tap is a hidden layer that ``read`` returns, or the logits. Let C be the number of classes, and D the number of
    values at a tap. The result has two tensors per tap. The first tensor is ``<tap>.mean`` [C, D]. The second tensor
    depends on ``kind``:

    - ``spectral``: ``<tap>.axes`` [C, components, D]
    - other kinds: ``logits.covariance`` [C, D, D] for the logits, ``<tap>.variance`` [C, D] for each hidden layer

    The entries of a class without examples are 0.
    """
    most = max(1, MOST_IMAGES // classes)
    rows = torch.cat([torch.nonzero(examples.labels == label)[:most, 0] for label in range(classes)])
    examples = ImageExamples(examples.data, examples.rows[rows], examples.dtype)
    labels = examples.labels.cpu()
    records: dict[str, list[Tensor]] = {}
    for name, values in activations_of(read, examples).items():
        for label in range(classes):
            of_label = values[labels == label]
            mean = _mean(of_label)
            centered = of_label.double() - mean
            if kind == "spectral":
                key = "axes"
                spread = principal_axes(centered, components)
            elif name == LOGITS:
                key = "covariance"
                spread = centered.T @ centered / max(1, len(of_label))
            else:
                key = "variance"
                spread = _mean(centered.square())
            records.setdefault(f"{name}.mean", []).append(mean)
            records.setdefault(f"{name}.{key}", []).append(spread)
    return {name: torch.stack(tensors).float() for name, tensors in records.items()}


@torch.no_grad()
def activations_of(read: TapReader, examples: ImageExamples) -> Tensors:
    """Return a dict from the name of each tap to the activations at this tap.

    The activations have shape [N, D] and are on the CPU. Each row belongs to one image, in the order of ``examples``.
    """
    parts: dict[str, list[Tensor]] = {}
    for _, inputs in examples.in_turn(EVALUATION_BATCH):
        output = read(**inputs)
        for name, values in {LOGITS: output.logits, **output.taps}.items():
            parts.setdefault(name, []).append(values.flatten(1).cpu())
    return {name: torch.cat(batches) for name, batches in parts.items()}


def principal_axes(values: Tensor, components: int) -> Tensor:
    """Return the first principal axes of ``values`` [n, D], shape [components, D]. ``values`` must be centered.

    The norm of an axis is the standard deviation along this axis. The axis with the largest norm comes first. In each
    axis, the element with the largest absolute value is positive. If there are fewer than ``components`` axes, the
    remaining rows are 0.
    """
    axes = torch.zeros(components, values.shape[1], dtype=torch.float64)
    if len(values):
        _, spread, directions = torch.linalg.svd(values / len(values) ** 0.5, full_matrices=False)
        count = min(components, len(spread))
        signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
        axes[:count] = (spread[:, None] * directions * signs)[:count]
    return axes


def sampled_activations(records: Tensors, labels: Tensor, draws: torch.Generator) -> Tensors:
    """Draw random activations for images of the classes ``labels`` [B].

    The result maps the name of each recorded tap to activations [B, D]. The activations are normally distributed with
    the recorded means and covariances.
    """
    sampled = {}
    for name in tap_names_of(records):
        mean = records[f"{name}.mean"][labels].double()
        sampled[name] = (mean + _deviations(records, name, labels, draws)).float()
    return sampled


def tap_names_of(records: Tensors) -> list[str]:
    """Return the names of the recorded taps, including the logits."""
    return sorted(name.removesuffix(".mean") for name in records if name.endswith(".mean"))


def scales_of(records: Tensors) -> dict[str, float]:
    """Return the scale of each tap: the variance within a class, averaged over classes and the tap's elements.

    The scale is 1 if no element varies.
    """
    scales = {}
    for name in tap_names_of(records):
        if f"{name}.variance" in records:
            variances = records[f"{name}.variance"]
        elif f"{name}.covariance" in records:
            variances = records[f"{name}.covariance"].diagonal(dim1=1, dim2=2)
        else:
            variances = records[f"{name}.axes"].square().sum(1)
        scales[name] = float(variances.double().mean()) or 1.0
    return scales


def _deviations(records: Tensors, name: str, labels: Tensor, draws: torch.Generator) -> Tensor:
    """Return the random deviation of each sampled activation from the mean of its class, float64 [B, D]."""
    if f"{name}.variance" in records:
        spread = records[f"{name}.variance"].double().sqrt()[labels]
        return spread * torch.randn(spread.shape, dtype=torch.float64, generator=draws)
    if f"{name}.covariance" in records:
        values, vectors = torch.linalg.eigh(records[f"{name}.covariance"].double())
        # rounding may make an eigenvalue of 0 negative
        axes = (vectors * values.clamp_min(0).sqrt()[:, None]).transpose(1, 2)
    else:
        axes = records[f"{name}.axes"].double()
    coefficients = torch.randn(len(labels), axes.shape[1], dtype=torch.float64, generator=draws)
    return torch.einsum("bk,bkd->bd", coefficients, axes[labels])


def _mean(values: Tensor) -> Tensor:
    if len(values):
        return values.double().mean(0)
    return torch.zeros(values.shape[1], dtype=torch.float64)
