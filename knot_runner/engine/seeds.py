"""Randomness keyed by names, never carried along: a resumed run draws what an undisturbed one draws."""

from __future__ import annotations

import hashlib

import torch


def keyed(seed: int, *names: object) -> int:
    """A 63-bit seed from the run's seed and names such as (stage, party, epoch)."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """A CPU generator of its own for (seed, *names)."""
    return torch.Generator().manual_seed(keyed(seed, *names))
