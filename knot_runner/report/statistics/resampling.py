"""Test items drawn with replacement (the bootstrap; Efron 1979), the same draws for all runs of a test set."""

from __future__ import annotations

import numpy as np

RESAMPLES = 2000
#: Numbers of draws held at once: 32 MB.
DRAWS = 4_000_000


def resampled_sums(columns: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Sums [B, K] of the ``columns`` [N, K] over N test items drawn with replacement, B times.

    The draws depend on N and ``seed`` only, so that columns of other runs get the same items.
    """
    rng, items = np.random.default_rng(seed), len(columns)
    values, found = columns.astype(np.float32), []
    for first in range(0, resamples, max(1, DRAWS // items)):
        rows = min(max(1, DRAWS // items), resamples - first)
        draws = rng.integers(0, items, (rows, items)) + np.arange(rows)[:, None] * items
        weights = np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items)
        found.append(weights.astype(np.float32) @ values)
    return np.concatenate(found).astype(np.float64)
