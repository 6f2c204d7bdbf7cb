"""The workloads of ``bench_federation`` and of the peers beside it: models, clients' sizes, who takes part when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import CnnSettings, ConvSettings, MlpSettings, ResnetSettings
from knot_runner.engine.examples import ClientData, ImageData, TextData
from knot_runner.models.network import Network
from knot_runner.models.tokens import Encoded

PARTICIPANTS = 10
BATCH = 16
LR = 1e-3
#: least and largest number of tokens of a text, about as many as utterances of MELD and DailyDialog have
TOKENS = (5, 28)


@dataclass(frozen=True)
class Workload:
    """``sizes``: examples of each client."""

    network: Network
    sizes: list[int]
    epochs: int
    momentum: float = 0.0
    optimizer: Literal["sgd", "adamw"] = "sgd"

    def cohort(self, number: int) -> list[int]:
        """Clients of round ``number``."""
        draws = torch.Generator().manual_seed(number)
        return torch.randperm(len(self.sizes), generator=draws)[:PARTICIPANTS].tolist()

    def rows(self) -> list[Tensor]:
        """Each client's rows of :meth:`data`."""
        return list(torch.arange(sum(self.sizes)).split(self.sizes))

    def data(self) -> ClientData:
        """Random images or texts, and labels."""
        return self._texts() if self.network.reads_texts else self._images()

    def _images(self) -> ImageData:
        draws = torch.Generator().manual_seed(1)
        count = sum(self.sizes)
        channels = self.network.inputs[0]
        pixels = torch.randint(0, 256, (count, *self.network.inputs), generator=draws, dtype=torch.uint8)
        labels = torch.randint(0, self.network.classes, (count,), generator=draws)
        return ImageData(pixels, labels, torch.full((channels,), 0.5), torch.full((channels,), 0.25))

    def _texts(self) -> TextData:
        draws = torch.Generator().manual_seed(1)
        count = sum(self.sizes)
        lengths = torch.randint(TOKENS[0], TOKENS[1] + 1, (count,), generator=draws)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(5, self.network.inputs, (int(offsets[-1]),), generator=draws, dtype=torch.int32)
        labels = torch.randint(0, self.network.classes, (count,), generator=draws)
        return TextData(Encoded(ids, offsets, lengths), labels)


def _workloads() -> dict[str, Workload]:
    cnn = CnnSettings("cnn", "w1", [ConvSettings(32, 5, 2), ConvSettings(64, 5, 2)], [512], "logits")
    mlp = MlpSettings("mlp", "w2", [200, 200, 200], "logits")
    dnn = Network(MlpSettings("mlp", "w3", [512, 256, 128], "logits"), (1, 28, 28), 62)
    bert = ModelSettings(
        "bert",
        "w5",
        "plain",
        "scratch",
        "train",
        8000,
        "",
        "",
        hidden=128,
        layers=2,
        heads=2,
        intermediate=512,
        dropout=0.1,
    )
    resnet = ResnetSettings("resnet", "w4", [2, 2, 2, 2], 64, "cifar", "group", 32)
    sizes = torch.randint(80, 356, (36,), generator=torch.Generator().manual_seed(2)).tolist()
    return {
        "W1": Workload(Network(cnn, (3, 32, 32), 10), [1000] * 50, 1),
        "W2": Workload(Network(mlp, (1, 28, 28), 62), sizes, 10),
        "W3": Workload(dnn, sizes, 10),
        "W3m": Workload(dnn, sizes, 10, momentum=0.9),
        "W4": Workload(Network(resnet, (3, 32, 32), 10), [250] * 20, 1),
        "W5": Workload(Network(bert, 8000, 5), [800] * 10, 1, optimizer="adamw"),
    }


WORKLOADS = _workloads()
