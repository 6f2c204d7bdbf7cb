"""What a method sees of the world: parties with stored examples and networks. No raw text, no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from knot_runner.config.settings import Labels, TrainingSettings
from knot_runner.config.strict import digest
from knot_runner.engine.examples import Augment
from knot_runner.engine.objectives import Objective
from knot_runner.engine.requests import Ref, StoredPart, Train
from knot_runner.models.network import Network


@dataclass(frozen=True)
class Federation:
    """Parties by role, their examples in the store, and the network each of them trains."""

    locals: list[str]
    server: str  #: name of the global data set
    transfer: str  #: name of the transfer set
    sizes: dict[str, int]  #: training examples per party
    examples: dict[tuple[str, str], Ref]  #: (data set, split) -> texts or images
    networks: dict[str, Network]
    labels: Labels
    training: TrainingSettings
    seed: int
    weights: str  #: identity of the pre-trained encoder, "scratch" if none
    random_examples: Ref | None = None
    augment: Augment = "none"  #: of training images
    #: split -> the server's images as the locals read them, where the server reads a view of them; else empty
    originals: dict[str, Ref] = field(default_factory=dict)
    mean: list[float] = field(default_factory=list)  #: of the locals' images, per channel, in 0..1
    std: list[float] = field(default_factory=list)
    trained: dict[str, Ref] = field(default_factory=dict)  #: locals whose weights are in the store from the beginning
    notes: list[str] = field(default_factory=list)  #: what the user should see of models and data

    @property
    def teachers(self) -> list[str]:
        """All local models and the pretrained global one, in that order (knot.md 1.3)."""
        return [*self.locals, self.server]

    @property
    def data(self) -> str:
        """Digest of all content that training depends on: every example as it is stored, and pre-trained weights."""
        parts = sorted([*names, *ref] for names, ref in self.examples.items())
        more = [part for part in (self.originals, self.trained) if part]
        return digest([parts, self.random_examples, self.weights, *more], 64)

    def part(self, dataset: str, split: str) -> StoredPart:
        return StoredPart(self.examples[dataset, split])

    def supervised(self, party: str, stage: Literal["local", "pretrain"]) -> Train:
        """Cross-entropy training of the party's network on its own labels, as ``stage`` of ``training`` says."""
        return Train(
            stage=stage,
            party=party,
            network=self.networks[party],
            start=None,
            train=self.part(party, "train"),
            valid=self.part(party, "valid"),
            objective=Objective(),
            training=getattr(self.training, stage),
            select="f1",
            seed=self.seed,
            weights=self.weights,
            augment=self.augment,
        )
