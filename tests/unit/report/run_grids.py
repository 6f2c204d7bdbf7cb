"""Fixtures of made runs over methods, temperatures and seeds."""

import pytest


@pytest.fixture
def full_grid(factory):
    """All eight methods of a task over some seeds, each method .01 better than the one before, seeds .02 apart."""

    def make(task, seeds):
        methods = [f"{loss}_{w}" for loss in ("entropy", "sinkhorn") for w in "adue"]
        return [
            factory.made(method, seed, task, base=0.3 + 0.01 * i + 0.02 * seed)
            for i, method in enumerate(methods)
            for seed in range(seeds)
        ]

    return make


@pytest.fixture
def trio(federated):
    """T=4, 1, 0.05 over two seeds. Targets (best of T=4): .40 and .30. Rounds: T=1 6 and 3, T=0.05 2 and 2."""
    courses = {
        4.0: ([0.1] * 7 + [0.4], [0.1, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]),
        1.0: ([0.1] * 6 + [0.4, 0.5], [0.1, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.4]),
        0.05: ([0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.6], [0.1, 0.2, 0.9, 0.5, 0.5, 0.5, 0.5, 0.6]),
    }
    return [federated.made(t, accs, seed=seed) for t, both in courses.items() for seed, accs in enumerate(both)]
