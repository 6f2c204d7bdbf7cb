"""Random seeds derived from names, without state: a resumed run draws the same numbers as an uninterrupted run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: Names whose seeds are derived from another spelling, with which recorded results were computed.
SPELLING = {"distill": "distil", "labeled": "labelled", "personalization": "personalisation", "unlabeled": "unlabelled"}


def keyed(seed: int, *names: object) -> int:
    """Return a 63-bit seed derived from the run's seed and names such as (stage, party, epoch)."""
    text = "/".join(SPELLING.get(str(name), str(name)) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """Return a new numpy generator seeded with (seed, *names)."""
    return np.random.default_rng(keyed(seed, *names))


def generator(seed: int, *names: object) -> torch.Generator:
    """Return a new CPU generator seeded with (seed, *names)."""
    return torch.Generator().manual_seed(keyed(seed, *names))


@contextmanager
def seeded(seed: int, *names: object, device: torch.device | None = None) -> Iterator[None]:
    """Context manager: seed torch's global CPU generator and that of ``device`` with (seed, *names).

    At the end of the ``with`` block, the previous state of the CPU generator is restored. Modules initialize their
    weights with these generators only. Models for another device are built on the CPU and then moved.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(keyed(seed, *names))
        if device is not None and device.type != "cpu":
            torch.manual_seed(keyed(seed, *names))  # seeds all devices, not only the current one
        yield
