"""What a method sees of the world: parties with encoded data and networks. No raw text, no files."""

from __future__ import annotations

from dataclasses import dataclass, field

from knot_runner.config.settings import Labels, TrainingSettings
from knot_runner.config.strict import digest
from knot_runner.engine.requests import EncodedPart, Ref
from knot_runner.models.network import Network


@dataclass(frozen=True)
class Federation:
    """Parties by role, their encoded texts in the store, and the network each of them trains."""

    locals: list[str]
    server: str  #: name of the global data set
    transfer: str  #: name of the transfer set
    sizes: dict[str, int]  #: training texts per party
    tokens: dict[tuple[str, str], Ref]  #: (data set, split) -> encoded texts
    networks: dict[str, Network]
    labels: Labels
    training: TrainingSettings
    seed: int
    weights: str  #: identity of the pre-trained encoder, "scratch" if none
    random_texts: Ref | None = None
    notes: list[str] = field(default_factory=list)  #: what the user should see of models and data

    @property
    def teachers(self) -> list[str]:
        """All local models and the pretrained global one, in that order (knot.md 1.3)."""
        return [*self.locals, self.server]

    @property
    def data(self) -> str:
        """Digest of all content that training depends on: every text as it is encoded, and pre-trained weights."""
        texts = sorted([*names, *ref] for names, ref in self.tokens.items())
        return digest([texts, self.random_texts, self.weights], 64)

    def part(self, dataset: str, split: str) -> EncodedPart:
        return EncodedPart(self.tokens[dataset, split])
