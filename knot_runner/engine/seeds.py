"""Random seeds keyed by names, without state: a resumed run samples what an uninterrupted one samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def keyed(seed: int, *names: object) -> int:
    """A 63-bit seed from the run's seed and names such as (stage, party, epoch)."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A new CPU generator seeded with (seed, *names)."""
    return torch.Generator().manual_seed(keyed(seed, *names))


@contextmanager
def seeded(seed: int, *names: object) -> Iterator[None]:
    """torch's global CPU generator, seeded with (seed, *names) and restored afterwards.

    Modules initialise their weights from no other generator. Models for another device are built on the CPU and moved.
    """
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(keyed(seed, *names))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
