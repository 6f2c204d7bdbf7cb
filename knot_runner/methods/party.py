"""Parties (a name, examples by split, and a network), and coordinates of labels."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from knot_runner.config.settings import Labels
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.federated.flat import FlatLayout
from knot_runner.engine.requests import Ref, StoredPart
from knot_runner.models.network import Network

#: Where a party's examples are: their rows [n] among those that an engine holds (methods that train in rounds), or in
#: the store (methods that train in stages).
PartyExamples = Tensor | Ref


@dataclass(frozen=True)
class Architecture:
    """The layout of a network's parameters, and its clients' initial model."""

    network: Network
    layout: FlatLayout
    start: ClientModel


@dataclass(frozen=True, eq=False)
class Party:
    """A client or server: ``examples`` by split, of which it trains on ``size``, and its network.

    ``trained``: its weights, where they are in the store before the run; ``originals``: by split, the examples as the
    other clients read them, where its own are a view of them.
    """

    name: str
    examples: dict[str, PartyExamples]
    network: Network
    size: int = 0
    trained: Ref | None = None
    originals: dict[str, Ref] = field(default_factory=dict)

    @staticmethod
    def of_rows(name: str, network: Network, **rows: Tensor) -> Party:
        """The party with ``rows`` [n] of each split."""
        return Party(name, rows, network, len(rows["train"]))

    @property
    def train(self) -> PartyExamples:
        """The examples that it trains on."""
        return self.examples["train"]

    @property
    def valid(self) -> PartyExamples:
        """The validation examples; no rows where there are none."""
        return self.examples.get("valid", torch.arange(0))

    @property
    def stored_valid(self) -> StoredPart | None:
        """The validation examples of a party whose examples are in the store; None where there are none."""
        return StoredPart(self.examples["valid"]) if "valid" in self.examples else None

    @property
    def test(self) -> PartyExamples:
        """The test examples."""
        return self.examples["test"]


def label_points(labels: Labels) -> list[list[float]]:
    """Where ``labels`` lie for the transport cost [C][d]: their ``support`` of the coordinates (knot.md 1.3)."""
    from knot_runner.transport import support  # which only distillation needs

    return support(torch.tensor(labels.coordinates, dtype=torch.float64), labels.support).tolist()
