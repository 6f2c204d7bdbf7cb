"""The names that stand nearest to a typed one, and how they are told."""

import pytest

from knot_runner.util.errors import MAX_NAMES, closest, nearest


def test_nearest_ignores_case():
    assert nearest("FEMNIST", ["femnist", "mnist"]) == " (did you mean 'femnist'?)"
    assert nearest("iemocap", ["IEMOCAP", "MELD"]) == " (did you mean 'IEMOCAP'?)"


#: Typed, known -> meant: two letters swapped; near none; one too few; the only one that begins so; and others.
SPELLINGS = [
    ("fedvag", ["fedavg", "fedprox"], "fedavg"), ("feddyn", ["fedavg", "fedmd", "fedprox"], None),
    ("fedal", ["fedavg", "fedala"], "fedala"), ("fede", ["federated_one", "fedmd_long_name"], "federated_one"),
    ("fed", ["fedavg_x", "fedprox_x"], None), ("x", ["y"], None),
    ("tabel1", ["chill/table1", "chill/table2"], "chill/table1"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "known", "meant"), SPELLINGS)
def test_closest_returns_near_or_prefix_spellings(typed, known, meant):
    assert closest(typed, known) == meant


def test_nearest_omits_long_lists_of_names():
    names = [f"{number}{number}" for number in range(MAX_NAMES)]
    assert nearest("x", names, listed_by="ls").startswith(". Run 'ls' to list the names. To add a name, use --config")
    assert nearest("x", names) == f" (choose from {', '.join(sorted(names))})"
    assert nearest("x", [*names, "y" * 9]) == ""
