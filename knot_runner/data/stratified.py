"""Random cuts of rows in two, the rows that scikit-learn's ``train_test_split`` draws (a test compares them).

By ourselves, since importing scikit-learn takes longer than a short run, and its draws may change with its version.
"""

from __future__ import annotations

import numpy as np


def random_cut(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(kept, taken) of rows 0..``count`` - 1, both sorted: ``share`` of them taken, rounded up."""
    taken = int(np.ceil(share * count))
    order = np.random.RandomState(seed).permutation(count)
    return np.sort(order[taken:]), np.sort(order[:taken])


def stratified_cut(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of the rows of ``labels`` [N], each label with its share of both parts.

    Both need room for every label, and every label two rows.
    """
    draws = np.random.RandomState(seed)
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    taken = int(np.ceil(share * len(labels)))
    kept_of = _allotted(counts, len(labels) - taken, draws)
    taken_of = _allotted(counts - kept_of, taken, draws)
    kept_rows, taken_rows = [], []
    for label, count in enumerate(counts):
        rows = np.flatnonzero(inverse == label)[draws.permutation(count)]
        first, last = kept_of[label], kept_of[label] + taken_of[label]
        kept_rows.append(rows[:first])
        taken_rows.append(rows[first:last])
    return np.sort(np.concatenate(kept_rows)), np.sort(np.concatenate(taken_rows))


def _allotted(counts: np.ndarray, places: int, draws: np.random.RandomState) -> np.ndarray:
    """How many of ``places`` each label gets, by its ``counts`` [C]: largest remainders first, ties drawn."""
    exact = counts / counts.sum() * places
    found = np.floor(exact)
    remainders, left = exact - found, int(places - found.sum())
    for remainder in np.unique(remainders)[::-1]:
        if left <= 0:
            break
        alike = np.flatnonzero(remainders == remainder)
        chosen = draws.choice(alike, size=min(len(alike), left), replace=False)
        found[chosen] += 1
        left -= len(chosen)
    return found.astype(int)
