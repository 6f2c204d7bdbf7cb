"""Derive random seeds from names instead of a global state.

A resumed run therefore draws the same random numbers as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: Names whose seeds are derived from another spelling, with which recorded results were computed.
SPELLING = {"distill": "distil", "labeled": "labelled", "personalization": "personalisation", "unlabeled": "unlabelled"}


def keyed(seed: int, *names: object) -> int:
    """Return a 63-bit seed that depends on the run's ``seed`` and on ``names``, such as the stage, party and epoch."""
    text = "/".join(SPELLING.get(str(name), str(name)) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """Return a new numpy random generator with the seed ``keyed(seed, *names)``."""
    return np.random.default_rng(keyed(seed, *names))


def generator(seed: int, *names: object) -> torch.Generator:
    """Return a new torch random generator for the CPU with the seed ``keyed(seed, *names)``."""
    return torch.Generator().manual_seed(keyed(seed, *names))


@contextmanager
def seeded(seed: int, *names: object, device: torch.device | None = None) -> Iterator[None]:
    """Context manager that seeds torch's global random generators of the CPU and of ``device``.

    The seed is ``keyed(seed, *names)``. The end of the ``with`` block restores the state of the CPU generator, but
    not the state of the generator of ``device``. Use this function when building a module, because initial weights are
    drawn from the global generators. Build modules on the CPU, so that initial weights do not depend on the device.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(keyed(seed, *names))
        if device is not None and device.type != "cpu":
            torch.manual_seed(keyed(seed, *names))  # seeds all devices, not only the current one
        yield
