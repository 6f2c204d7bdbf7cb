"""The temperature probe: gradients, distances to the decision boundary, softmax (FLex&Chill section 3.1, Fig. 1-3).

Details that the paper does not specify are settings (:class:`ProbeSettings`). One model serves all three figures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from knot_runner.config.settings import ProbeSettings, Settings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.seeds import generator
from knot_runner.methods.temperature_probe.measures import (
    Probed,
    ProbeProgress,
    boundary_arrays,
    gradient_arrays,
    start_probe,
)
from knot_runner.models.network import Network
from knot_runner.util.errors import UserError

__all__ = ["probe_arrays"]


def probe_arrays(
    hp: ProbeSettings,
    settings: Settings,
    data: ImageData,
    test: ImageData,
    network: Network,
    device: torch.device,
    watch: ProbeProgress,
    note: Callable[[str], None],
) -> dict[str, Tensor]:
    """The arrays of ``probe.safetensors``, on the CPU: K temperatures, N images of Fig. 1, M wrong ones of Fig. 2.

    ``temperatures`` float64 [K]; ``gradients.norm`` float32 [K, N], ``gradients.right`` uint8 [N];
    ``boundary.before`` float32 [M], ``boundary.after`` float32 [K, M] (normalised pixels; inf: no change of decision
    up to ``attack_limit``), ``boundary.right`` uint8 [K, M] (whether the step put the image right), ``boundary.tried``
    int64 [1]; ``softmax.probabilities`` float32 [K, C], ``softmax.label`` and ``softmax.row`` int64 [1].
    Raises :class:`UserError` when the central training diverges, or for a ``shown_class`` that is not there.
    """
    of_class = _shown_rows(hp, data, network)
    probed = Probed(start_probe(hp, settings, data, test, network, device, watch), data, device)
    rows = {key: _draw(settings.seed, key, getattr(hp, key), data, note) for key in ("images", "boundary_images")}
    return {
        "temperatures": torch.tensor(hp.temperatures, dtype=torch.float64),
        **gradient_arrays(hp, probed, rows["images"], watch),
        **boundary_arrays(hp, probed, rows["boundary_images"], watch),
        **_softmax(hp, probed, of_class, note),
    }


def _draw(seed: int, key: str, most: int, data: ImageData, note: Callable[[str], None]) -> Tensor:
    """Rows of up to ``most`` training images, drawn by the seed, ascending."""
    there = len(data.labels)
    if most > there:
        note(f"method.{key}: {most:,} wanted, all {there:,} training images taken")
    return torch.randperm(there, generator=generator(seed, "probe", key))[:most].sort().values


def _shown_rows(hp: ProbeSettings, data: ImageData, network: Network) -> Tensor:
    """Rows of the training images of ``shown_class``, ascending."""
    last = network.classes - 1
    if hp.shown_class > last:
        raise UserError(f"method.shown_class: there is no class {hp.shown_class}; 0 to {last} would be right")
    rows = (data.labels.cpu() == hp.shown_class).nonzero()[:, 0]
    if not len(rows):
        raise UserError(f"method.shown_class: no training image has class {hp.shown_class}; choose another")
    return rows


@torch.no_grad()
def _softmax(hp: ProbeSettings, probed: Probed, rows: Tensor, note: Callable[[str], None]) -> dict[str, Tensor]:
    """Fig. 3: softmax(z / T) of the first misclassified image of ``rows``; of the first, with a warning, when all are
    right.

    The paper shows one image of its class, without saying which.
    """
    logits = torch.cat([probed.model(images) for images, _ in probed.batches(rows)])
    wrong = (logits.argmax(1) != hp.shown_class).nonzero()[:, 0]
    if not len(wrong):
        note(f"method.shown_class: all {len(rows):,} images of class {hp.shown_class} are right; the first is shown")
    chosen = int(wrong[0]) if len(wrong) else 0
    shares = [torch.softmax(logits[chosen] / temperature, 0).cpu() for temperature in hp.temperatures]
    return {
        "softmax.probabilities": torch.stack(shares),
        "softmax.label": torch.tensor([hp.shown_class]),
        "softmax.row": rows[[chosen]],
    }
