"""Frozen teachers: their outputs for a batch, cached from one pass over all examples where possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientExamples, ImageExamples
from knot_runner.engine.loop import EVALUATION_BATCH, Place, stored_model
from knot_runner.engine.requests import Ref
from knot_runner.methods.distil.learner import OutputReader
from knot_runner.methods.distil.term import NetworkOutputs
from knot_runner.models.network import Network

#: Bytes of one teacher's outputs that are kept; larger ones are computed again for every batch.
MOST_BYTES = 2**30


class FrozenTeachers:
    """(positions [B] among ``examples``, inputs of a batch) -> outputs of each teacher.

    ``readers``: of their outputs, of models in evaluation mode without gradients. ``originals``: the teachers' inputs
    instead of the student's ``examples``, paired by position. ``cached``: inputs do not change (no augmentation), so
    that outputs of one pass are cached, unless they take more than ``MOST_BYTES``.
    """

    def __init__(
        self,
        readers: Sequence[OutputReader],
        examples: ClientExamples,
        cached: bool,
        originals: ImageExamples | None = None,
    ) -> None:
        self._originals, self._readers = originals, readers
        seen = examples if originals is None else originals
        self._kept = [_outputs_of_all(reader, seen) if cached else None for reader in self._readers]

    def __call__(self, positions: Tensor, inputs: dict[str, Tensor]) -> list[NetworkOutputs]:
        if self._originals is not None:
            inputs = {"x": self._originals.images[positions.to(self._originals.rows.device)]}
        found = []
        for reader, kept in zip(self._readers, self._kept, strict=True):
            if kept is None:
                with torch.no_grad():
                    found.append(reader(inputs))
            else:
                rows = positions.to(kept.logits.device)
                taps = {name: tap[rows] for name, tap in kept.taps.items()}
                found.append(NetworkOutputs(kept.logits[rows], taps))
        return found


def frozen_network(network: Network, weights: Ref, place: Place) -> nn.Module:
    """The network with stored ``weights``, in evaluation mode; none of its parameters has a gradient."""
    return stored_model(place, network, weights).requires_grad_(False).eval()


@torch.no_grad()
def _outputs_of_all(reader: OutputReader, examples: ClientExamples) -> NetworkOutputs | None:
    """Returns the outputs for all examples, in order; None where they exceed the cache's limit."""
    places: list[Tensor] = []
    parts: dict[str, list[Tensor]] = {}
    for positions, inputs in examples.in_turn(EVALUATION_BATCH):
        output = reader(inputs)
        outputs = {"": output.logits, **output.taps}  # no tap has an empty name
        if sum(part[:1].nbytes for part in outputs.values()) * len(examples) > MOST_BYTES:
            return None
        places.append(positions)
        for name, part in outputs.items():
            parts.setdefault(name, []).append(part)
    order = torch.argsort(torch.cat(places))
    kept = {name: torch.cat(found)[order.to(found[0].device)] for name, found in parts.items()}
    return NetworkOutputs(kept.pop(""), kept)
