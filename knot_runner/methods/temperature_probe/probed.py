"""The model that is probed, and its images in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from knot_runner.config.settings import ProbeSettings, Settings
from knot_runner.engine.examples import ImageData, normalised
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.loop import Loop
from knot_runner.models.network import Network, build_network
from knot_runner.util.errors import UserError

#: Called with (stage, done, total, text); ``text="done"`` ends a stage.
ProbeProgress = Callable[[str, int, int, str], None]
#: Images in a batch.
_ROWS = 256


@dataclass(frozen=True)
class Probed:
    """``model`` on ``device``, in evaluation mode, its parameters fixed; and the training images."""

    model: nn.Module
    data: ImageData
    device: torch.device

    def batches(self, rows: Tensor, size: int = _ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images [n, C, H, W] float32 and labels [n] of ``rows``, on the device, ``size`` at a time."""
        for part in rows.to(self.data.labels.device).split(size):
            images = normalised(self.data, part, torch.float32)
            yield images.to(self.device), self.data.labels[part].to(self.device)


def start_probe(
    hp: ProbeSettings,
    settings: Settings,
    data: ImageData,
    test: ImageData,
    network: Network,
    device: torch.device,
    watch: ProbeProgress,
) -> nn.Module:
    """The model of :class:`Probed`: fresh, or after ``warm_epochs`` of central training at T=1 (the paper says no more
    than "an initial neural network")."""
    weights, buffers = flat.initial(network, settings.seed)
    if hp.warm_epochs:
        everything = torch.arange(len(data.labels))
        recipe = _central(hp, settings)
        request = LocalTraining(0, 0, settings.seed, ClientModel(weights, buffers), everything, everything[:0], recipe)
        watch("central training", 0, 1, f"{hp.warm_epochs} epochs")
        trained = Loop(network, data, test, device, torch.float32).train_client(request)
        watch("central training", 1, 1, "done")
        weights, buffers = trained.weights, trained.buffers
        if not (weights.isfinite().all() and buffers.isfinite().all()):
            raise UserError(f"training.lr: central training at {recipe.lr} diverged; a smaller rate would be right")
    model = build_network(network)
    flat.load_flat(model, flat.layout_of(network), weights, buffers)
    return model.to(device).eval().requires_grad_(False)


def _central(hp: ProbeSettings, settings: Settings) -> Recipe:
    training = settings.training
    return Recipe(
        phases=(Phase(hp.warm_epochs),),
        batch=training.batch,
        drop_last=training.drop_last,
        optimiser=training.optimiser,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        decay_biases=training.decay_biases,
        augment=settings.task.augment,
    )
