"""Requests of data-free distillation: records of a teacher, and images synthesized from it, committed in parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.distill import GeneratorSynthesis, StatisticsSynthesis, Synthesis
from knot_runner.engine.examples import stored_data
from knot_runner.engine.loop import EVALUATION_BATCH, Resources, stored_examples
from knot_runner.engine.requests import OwnRequest, Ref, TensorsAndFacts
from knot_runner.engine.training import Report, train_epochs
from knot_runner.methods.distill.learner import frozen_network
from knot_runner.methods.distill.synthesis.images import GeneratedImages, OptimizedImages, batch_norms
from knot_runner.methods.distill.synthesis.records import released_records
from knot_runner.models.network import Network
from knot_runner.models.taps import read_taps, tap_names


@dataclass(frozen=True)
class ReleaseRecords(OwnRequest):
    """Compute the records of a teacher's activations on its training images, which its owner releases as well."""

    stage: Literal["records"]
    party: str
    network: Network
    weights: Ref
    examples: Ref
    kind: Literal["top", "all", "spectral"]
    #: number of principal axes for kind=spectral, otherwise None
    components: int | None

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the records, and a dict with their ``kind``, number of ``floats`` and ``bytes``."""
        began = time.monotonic()
        examples = stored_examples(resources, self.examples)
        taps = [] if self.kind == "top" else tap_names(self.network)
        read = read_taps(frozen_network(self.network, self.weights, resources), self.network, taps)
        records = released_records(read, examples, self.network.classes, self.kind, self.components or 0)
        return records, {"released": released(self.kind, records.values()), "seconds": time.monotonic() - began}


@dataclass(frozen=True)
class MakeImages(OwnRequest):
    """Synthesize images from a teacher. Only the teacher's weights and records depend on real images.

    The artifact holds stored examples, labeled with the teacher's argmax.
    """

    stage: Literal["synthetic"]
    party: str
    #: network and weights of the teacher
    network: Network
    weights: Ref
    synthesis: Synthesis
    records: Ref | None
    #: mean and standard deviation of the teacher's images, per channel, for pixels in 0..1 (public)
    mean: list[float]
    std: list[float]
    seed: int

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the images and a dict of facts: the number of images, the last step's ``loss``, and ``released``.

        Raises:
            DivergedError: A loss is not finite.
        """
        config = self.synthesis
        model = frozen_network(self.network, self.weights, resources)
        records = resources.store.get(*self.records) if self.records else None
        synthesis: GeneratedImages | OptimizedImages
        if isinstance(config, GeneratorSynthesis):
            synthesis = GeneratedImages(self, config, model, resources.device, report)
        else:
            tensors = records.tensors() if records else {}
            synthesis = OptimizedImages(self, config, model, tensors, resources.device, report)
        _, facts = train_epochs(synthesis, work, synthesis.epochs, "last", "score")
        statistics = [norm.running_mean for norm in batch_norms(model)] * 2  # and as many variances
        record = records.info["released"] if records else released("nothing", [])
        if isinstance(config, StatisticsSynthesis):
            record = released("statistics in the weights", statistics)
        images = _stored(synthesis.images(), self, model, resources.device)
        loss, seconds = facts["epochs"][-1]["loss"], facts["seconds"]
        return images, {"images": config.images, "loss": loss, "seconds": seconds, "released": record}


def released(kind: str, tensors: Any) -> dict[str, Any]:
    """Return the ``kind`` and size of the data that a teacher's owner releases in addition to the weights."""
    tensors = list(tensors)
    return {"kind": kind, "floats": sum(t.numel() for t in tensors), "bytes": sum(t.nbytes for t in tensors)}


@torch.no_grad()
def _stored(pixels: Tensor, request: MakeImages, model: torch.nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Return the images [N, C, H, W] in 0..1 as stored examples with the teacher's labels."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (request.mean, request.std))
    unknown = torch.full((len(pixels),), UNLABELED)
    tensors = {"pixels": pixels.contiguous(), "labels": unknown, "mean": mean, "std": std}
    data = stored_data(tensors).to(device)
    examples = data.select(torch.arange(len(pixels)), torch.float32)
    predicted = [model(**inputs).argmax(1).cpu() for _, inputs in examples.in_turn(EVALUATION_BATCH)]
    return {**tensors, "labels": torch.cat(predicted)}
