"""Tests that belong to a paper: they are left out where its folder in ``knot_runner/papers`` is deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

#: Folder of a paper -> what its presets and its own methods and tasks look like in a command.
WORDS = {
    "chill": r"\bchill/|method=temperature_probe",
    "fedwad": r"\bfedwad/|method=(coreset|dataset_distance|federated_distance)|task=(gaussians|image_sets)",
    "kd": r"\bkd/",
    "knot": r"\bknot/",
    "soup": r"\bsoup/",
}


def of_papers(cases: Iterable[Any] | Mapping[Any, Any]) -> list[Any]:
    """The ``cases`` (of a mapping: its keys) as parameters of a test, marked by the papers that their words name."""
    marked = []
    for case in cases:
        words = repr(cases[case] if isinstance(cases, Mapping) else case)
        marks = [pytest.mark.paper(paper) for paper, pattern in WORDS.items() if re.search(pattern, words)]
        old = pytest.param(*(case if isinstance(case, tuple) else (case,)))
        if isinstance(case, type(old)):  # the case is a pytest.param
            old = case
        marked.append(pytest.param(*old.values, marks=[*old.marks, *marks], id=old.id))
    return marked
