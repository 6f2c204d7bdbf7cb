"""Values nobody can mean, on every key of a federated run: one line that is an answer, or a run, never a traceback."""

import itertools
import random

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.util.errors import UserError

BASE = ["task=femnist", "method=fedprox"]
VALUES = ("null", "-1", "0", "nan", "inf", "x", "[]", "{}", "true", "1e400", "''", "99999999999999999999")


def keys(node, before=""):
    for name, value in node.items():
        yield before + name
        if isinstance(value, dict):
            yield from keys(value, f"{before}{name}.")


def cases():
    """A seeded sample of all pairs of key and value, and all values on the groups themselves."""
    config = compose_all(BASE)[0][0].config
    pairs = list(itertools.product(keys(config), VALUES))
    groups = [(key, value) for key, value in pairs if "." not in key]
    return sorted(set(random.Random(7).sample(pairs, 120)) | set(groups))


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.thorough) for part in (2, 3))])
def test_hostile_values(part):
    refused = 0
    for key, value in cases()[part::4]:
        try:
            compose_all([*BASE, f"{key}={value}"])
        except UserError as problem:
            assert str(problem) and "\n" not in str(problem), (key, value)
            refused += 1
    assert refused > 20
