"""Random seeds keyed by names, without state: a resumed run draws the same numbers as an uninterrupted one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: Name -> the earlier spelling that keys its seeds, because recorded results were computed with this spelling.
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
    """Seed torch's global CPU generator and the generator of ``device`` with (seed, *names), inside the block.

    The previous states are restored afterwards. Modules use no other generator to initialize their weights. Models for
    another device are built on the CPU and moved.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(keyed(seed, *names))
        if device is not None and device.type != "cpu":
            torch.manual_seed(keyed(seed, *names))  # of all devices: that of a module is of its current one
        yield
