"""Our random cuts against scikit-learn's, row for row."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from knot_runner.data.splits import random_cut, stratified_cut

SHARES, SEEDS = st.floats(0.01, 0.99), st.integers(0, 2**32 - 1)


def as_scikit_learn(count: int, share: float, seed: int, labels: np.ndarray | None) -> list[list[int]]:
    parts = train_test_split(np.arange(count), test_size=share, random_state=seed, stratify=labels)
    return [sorted(part.tolist()) for part in parts]


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 300), SHARES, SEEDS)
def test_a_random_cut_is_that_of_scikit_learn(count: int, share: float, seed: int) -> None:
    assume(0 < np.ceil(share * count) < count)
    assert [part.tolist() for part in random_cut(count, share, seed)] == as_scikit_learn(count, share, seed, None)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), SHARES, SEEDS, st.data())
def test_a_stratified_cut_is_that_of_scikit_learn(
    counts: list[int], share: float, seed: int, data: st.DataObject
) -> None:
    """Equal counts among ``counts`` make remainders that tie, whose places are drawn."""
    total = sum(counts)
    taken = int(np.ceil(share * total))
    assume(min(taken, total - taken) >= len(counts))
    labels = np.random.default_rng(data.draw(SEEDS)).permutation(np.repeat(np.arange(len(counts)) * 3 - 2, counts))
    found = [part.tolist() for part in stratified_cut(labels, share, seed)]
    assert found == as_scikit_learn(total, share, seed, labels)
