"""Runs with their generalisation bound, as small as they can be."""

from pathlib import Path

from knot_runner.cli.main import main
from tests.tiny import TINY_PARTIES, replaced

#: As the theorem has it: weights that sum to 1, no regularisation (one-hot labels are leaves of a tree).
BOUNDED = replaced(TINY_PARTIES, "method=sinkhorn_a", "method.normalise=true", "training.distil.epochs=2")


def run(out, words):
    """The run's folder."""
    before = set(Path(out).glob("*/*/*/result.json"))
    assert main([*words, f"paths.out={out}"]) == 0
    (made,) = set(Path(out).glob("*/*/*/result.json")) - before
    return made.parent
