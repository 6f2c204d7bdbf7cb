"""Requests of data-free distillation: records of a teacher's activations, and images synthesized from the teacher."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.distill import GeneratorSynthesis, StatisticsSynthesis, Synthesis
from knot_runner.engine.examples import forward_all, stored_data
from knot_runner.engine.loop import EVALUATION_BATCH, Resources, stored_examples
from knot_runner.engine.requests import OwnRequest, Ref, TensorsAndFacts
from knot_runner.engine.stages import Report, train_epochs
from knot_runner.methods.distill.learner import frozen_network
from knot_runner.methods.distill.synthesis.images import GeneratedImages, OptimizedImages, Synthesizer, batch_norms
from knot_runner.methods.distill.synthesis.records import released_records
from knot_runner.models.network import Network
from knot_runner.models.taps import read_taps, tap_names
from knot_runner.util.files import Facts


@dataclass(frozen=True)
class ReleaseRecords(OwnRequest):
    """A request to compute the records that a teacher's owner releases.

    Records are statistics of the teacher's activations on training images.
    """

    stage: str
    party: str
    network: Network
    weights: Ref
    examples: Ref
    kind: Literal["top", "all", "spectral"]
    #: number of principal axes for kind=spectral, otherwise None
    components: int | None

    def run(self, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
        """Return the records, and a dict of facts.

        The fact ``released`` holds the ``kind`` of the records, their number of ``floats``, and their size in
        ``bytes``.
        """
        began = time.monotonic()
        examples = stored_examples(resources, self.examples)
        taps: list[str] = []
        if self.kind != "top":
            taps = tap_names(self.network)
        read = read_taps(frozen_network(self.network, self.weights, resources), self.network, taps)
        records = released_records(read, examples, self.network.classes, self.kind, self.components or 0)
        return records, {"released": released(self.kind, records.values()), "seconds": time.monotonic() - began}


@dataclass(frozen=True)
class MakeImages(OwnRequest):
    """A request to synthesize images from a teacher, without reading real images.

    The synthesis reads only the teacher's weights, the records of its activations (if any), and the mean and standard
    deviation of its training images. The artifact holds the synthesized images as examples. The label of an image is
    the argmax of the teacher's logits.
    """

    stage: str
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
        """Return the images, and a dict of facts.

        The facts include the number of ``images``, and the ``loss`` of the last step. For the fact ``released``, see
        :func:`released`.

        Raises:
            DivergedError: A loss is not finite.
        """
        config = self.synthesis
        device = resources.device
        records = {}
        model = frozen_network(self.network, self.weights, resources)
        release = released("nothing", [])
        if self.records:
            artifact = resources.store.get(*self.records)
            records = artifact.tensors()
            release = artifact.info["released"]
        elif isinstance(config, StatisticsSynthesis):
            means = [norm.running_mean for norm in batch_norms(model)]
            release = released("statistics in the weights", means * 2)  # twice: means and variances
        synthesis: Synthesizer
        if isinstance(config, GeneratorSynthesis):
            synthesis = GeneratedImages(self, config, model, device, report)
        else:
            synthesis = OptimizedImages(self, config, model, records, device, report)
        _, facts = train_epochs(synthesis, work, synthesis.epochs, "last", "score")
        pixels = synthesis.images()
        mean = torch.tensor(self.mean, dtype=torch.float64)
        std = torch.tensor(self.std, dtype=torch.float64)
        unknown = torch.full((len(pixels),), UNLABELED)
        tensors = {"pixels": pixels.contiguous(), "labels": unknown, "mean": mean, "std": std}
        examples = stored_data(tensors).to(device).select(torch.arange(len(pixels)), torch.float32)
        tensors["labels"] = forward_all(model, examples, EVALUATION_BATCH).argmax(1).cpu()
        loss = facts["epochs"][-1]["loss"]
        return tensors, {"images": config.images, "loss": loss, "seconds": facts["seconds"], "released": release}


def released(kind: str, tensors: Collection[Any]) -> Facts:
    """Return the ``kind`` and size of the data that the teacher's owner releases in addition to the weights.

    The entries ``floats`` and ``bytes`` are the number of floats and the number of bytes in ``tensors``.
    """
    return {"kind": kind, "floats": sum(t.numel() for t in tensors), "bytes": sum(t.nbytes for t in tensors)}
