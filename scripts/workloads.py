"""The workloads of ``bench_federation`` and of the peers beside it: models, clients' sizes, who takes part when."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.config.settings import CnnSettings, ConvSettings, MlpSettings
from knot_runner.engine.examples import ImageData
from knot_runner.models.network import Network

PARTICIPANTS = 10
BATCH = 16
LR = 1e-3


@dataclass(frozen=True)
class Workload:
    """``sizes``: images of each client."""

    network: Network
    sizes: list[int]
    epochs: int
    momentum: float = 0.0

    def cohort(self, number: int) -> list[int]:
        """Clients of round ``number``."""
        draws = torch.Generator().manual_seed(number)
        return torch.randperm(len(self.sizes), generator=draws)[:PARTICIPANTS].tolist()

    def rows(self) -> list[Tensor]:
        """Each client's rows of :meth:`data`."""
        return list(torch.arange(sum(self.sizes)).split(self.sizes))

    def data(self) -> ImageData:
        """Random images and labels."""
        draws, count = torch.Generator().manual_seed(1), sum(self.sizes)
        channels = self.network.inputs[0]
        pixels = torch.randint(0, 256, (count, *self.network.inputs), generator=draws, dtype=torch.uint8)
        labels = torch.randint(0, self.network.classes, (count,), generator=draws)
        return ImageData(pixels, labels, torch.full((channels,), 0.5), torch.full((channels,), 0.25))


def _workloads() -> dict[str, Workload]:
    cnn = CnnSettings("cnn", "w1", [ConvSettings(32, 5, 2), ConvSettings(64, 5, 2)], [512], "logits")
    mlp = MlpSettings("mlp", "w2", [200, 200, 200], "logits")
    dnn = Network(MlpSettings("mlp", "w3", [512, 256, 128], "logits"), (1, 28, 28), 62)
    sizes = torch.randint(80, 356, (36,), generator=torch.Generator().manual_seed(2)).tolist()
    return {
        "W1": Workload(Network(cnn, (3, 32, 32), 10), [1000] * 50, 1),
        "W2": Workload(Network(mlp, (1, 28, 28), 62), sizes, 10),
        "W3": Workload(dnn, sizes, 10),
        "W3m": Workload(dnn, sizes, 10, momentum=0.9),
    }


WORKLOADS = _workloads()
