"""Tests that belong to a paper: they are left out where its folder in ``knot_runner/papers`` is deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

#: Folder of a paper -> what names its presets, methods, tasks, kinds of runs and settings.
WORDS = {
    "chill": r"\bchill/|\btemperature_probe\b|'probe'",
    "fedwad": r"\bfedwad/|\b(coreset|coreset_knn|dataset_distance|federated_distance|gaussians|image_sets)\b"
    r"|'(knn|distance|matrix|gap)'",
    "kd": r"\bkd/",
    "knot": r"\bknot[/_]|\bbound=true",
    "soup": r"\bsoup/|\b(transfer_matrix|landscape)\b",
}

#: The papers whose folders are here.
PAPERS = {path.parent.name for path in Path(__file__).resolve().parents[1].glob("knot_runner/papers/*/__init__.py")}


def is_here(preset: str) -> bool:
    """Return whether the preset's folder is of no paper, or of one that is here."""
    folder = preset.partition("/")[0]
    return folder not in WORDS or folder in PAPERS


def papers_in(text: str) -> set[str]:
    """Return the papers whose presets, methods or settings ``text`` names."""
    return {paper for paper, pattern in WORDS.items() if re.search(pattern, text)}


def of_papers(cases: Iterable[Any] | Mapping[Any, Any]) -> list[Any]:
    """The ``cases`` (of a mapping: its keys) as parameters of a test, marked by the papers that they name."""
    marked = []
    for case in cases:
        words = repr((case, cases[case]) if isinstance(cases, Mapping) else case)
        marks = [pytest.mark.paper(paper) for paper in sorted(papers_in(words))]
        old = pytest.param(*(case if isinstance(case, tuple) else (case,)))
        if isinstance(case, type(old)):  # the case is a pytest.param
            old = case
        marked.append(pytest.param(*old.values, marks=[*old.marks, *marks], id=old.id))
    return marked
