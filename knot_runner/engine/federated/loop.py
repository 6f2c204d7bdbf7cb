"""The plain loop over clients: modules, autograd, ``torch.optim.SGD``. The reference for the other engines."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import (
    INFERENCE_ROWS,
    Blueprint,
    ImageData,
    Inference,
    LocalTraining,
    Recipe,
    Trained,
)
from knot_runner.models.images import build_image_model
from knot_runner.models.norms import BatchNorm


class Loop:
    """One client after another on ``device``. ``data``: train and test images."""

    name = "loop"

    def __init__(
        self, blueprint: Blueprint, data: ImageData, test: ImageData, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layout = flat.layout_of(blueprint)
        self.device, self.dtype = device, dtype
        self.data, self.test = (_to(images, device) for images in (data, test))
        with torch.device("meta"):  # uninitialised: every request brings its weights
            model = build_image_model(blueprint.spec, blueprint.shape, blueprint.classes)
        self.model = model.to(dtype).to_empty(device=device)

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`."""
        return [self.train_client(request) for request in cohort]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`."""
        return [self._logits(request) for request in requests]

    def close(self) -> None:
        """Nothing to free."""

    def train_client(self, request: LocalTraining) -> Trained:
        """One client's epochs, step by step."""
        model, recipe = self.model, request.recipe
        flat.load_flat(model, self.layout, request.weights.to(self.device), request.buffers.to(self.device))
        before = self._correct(request.test_rows)
        labels = self.data.labels[request.rows.to(self.device)]
        images = local.normalised(self.data, request.rows.to(self.device), self.dtype)
        temperatures = self._temperatures(recipe, images, labels)
        start = [parameter.detach().clone() for parameter in model.parameters()] if recipe.proximal else None
        total, steps = torch.zeros((), dtype=torch.float64, device=self.device), 0
        optimisers = {phase.trains: _sgd(model, recipe, phase.trains) for phase in recipe.phases}
        control = None
        if request.control is not None:
            control = flat.views(request.control.to(self.device, self.dtype), self.layout.parameters)
        _train_mode(model, recipe)
        for epoch in local.epochs(request, recipe.augment):
            order = epoch.order.to(self.device)
            seen = local.augmented_images(images[order], epoch.shifts, epoch.flips)
            for at in range(0, len(order), recipe.batch):
                part = order[at : at + recipe.batch]
                loss = _loss(model(seen[at : at + recipe.batch]), labels[part], recipe, temperatures, part)
                optimisers[epoch.trains].zero_grad(set_to_none=True)
                (loss + _proximal(model, start, recipe)).backward()
                if control is not None:
                    for name, parameter in model.named_parameters():
                        if parameter.grad is not None:
                            parameter.grad += control[name]
                optimisers[epoch.trains].step()
                total, steps = total + loss.detach().double(), steps + 1
        weights, buffers = flat.flat_vectors(model)
        after = self._correct(request.test_rows)
        mean = float(total) / max(steps, 1)
        (finite,) = local.finite(weights[None])
        return Trained(request.client, weights.cpu(), buffers.cpu(), steps, mean, before, after, finite)

    @torch.no_grad()
    def _temperatures(self, recipe: Recipe, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        if recipe.hard_temperature is None:
            return None
        self.model.eval()
        logits = torch.cat([self.model(part) for part in images.split(INFERENCE_ROWS)])
        return local.sample_temperatures(recipe, logits, labels)

    @torch.no_grad()
    def _correct(self, rows: Tensor) -> int:
        rows = rows.to(self.device)
        return int((self._forward(self.test, rows).argmax(1) == self.test.labels[rows]).sum()) if len(rows) else 0

    @torch.no_grad()
    def _logits(self, request: Inference) -> Tensor:
        flat.load_flat(self.model, self.layout, request.weights.to(self.device), request.buffers.to(self.device))
        data = self.test if request.split == "test" else self.data
        return self._forward(data, request.rows.to(self.device)).cpu()

    def _forward(self, data: ImageData, rows: Tensor) -> Tensor:
        self.model.eval()
        parts = [self.model(local.normalised(data, part, self.dtype)) for part in rows.split(INFERENCE_ROWS)]
        return torch.cat(parts)


def _to(data: ImageData, device: torch.device) -> ImageData:
    return ImageData(data.pixels.to(device), data.labels.to(device), data.mean.to(device), data.std.to(device))


def _train_mode(model: nn.Module, recipe: Recipe) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.frozen = recipe.frozen_statistics


def _sgd(model: nn.Module, recipe: Recipe, trains: str) -> torch.optim.SGD:
    """The optimiser of one kind of phase; parameters that it does not train get no gradient in that phase."""
    chosen = [
        (n, p) for n, p in model.named_parameters() if trains == "all" or n.startswith("head.") == (trains == "head")
    ]
    decayed = [p for n, p in chosen if recipe.decay_biases or not n.endswith("bias")]
    others = [p for n, p in chosen if not (recipe.decay_biases or not n.endswith("bias"))]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD([g for g in groups if g["params"]], lr=recipe.lr, momentum=recipe.momentum)


def _loss(
    logits: Tensor, labels: Tensor, recipe: Recipe, temperatures: tuple[Tensor, Tensor] | None, part: Tensor
) -> Tensor:
    """mean_i scale_i * CE(z_i / T_i, y_i) (FLex&Chill, algorithm 1 lines 15 and 16)."""
    if temperatures is None:
        return F.cross_entropy(logits / recipe.temperature, labels)
    values, scales = temperatures[0][part], temperatures[1][part]
    return (scales * F.cross_entropy(logits / values[:, None], labels, reduction="none")).mean()


def _proximal(model: nn.Module, start: list[Tensor] | None, recipe: Recipe) -> Tensor | float:
    """(mu / 2) || w - w_start ||^2 (Li et al. 2020, eq. 2)."""
    if start is None:
        return 0.0
    pairs = zip(model.parameters(), start, strict=True)
    return recipe.proximal / 2 * sum((parameter - origin).square().sum() for parameter, origin in pairs)
