"""Runs with their generalization bound, as small as they can be."""

from pathlib import Path

from tests import runs
from tests.tiny import TINY_PARTIES, replaced

#: As the theorem has it: weights that sum to 1, no regularization (one-hot labels are leaves of a tree).
BOUNDED = replaced(TINY_PARTIES, "method=sinkhorn_a", "method.normalize=true", "training.distill.epochs=2")


def run(out: Path, words: list[str]) -> Path:
    """The run's folder."""
    return runs.run(out, *words).folder
