"""``conf/KEYS.md`` holds every key, as ``scripts/key_reference.py`` writes it now."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from knot_runner.composing.commands import compose_jobs

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RUNS = (
    "task=erc method=sinkhorn_e", "task=femnist method=soup fleet=phones",
    "task=femnist method=fedavg privacy=user_level method.aggregation=uniform",
    "task=mnist_fedwad method=clustered_fedrep",
    "task=mnist method=multi_teacher +base/term@method.terms.triplet=triplet training=kd", "task=image_sets",
)  # fmt: skip


@dataclass
class Two:
    #: what ``it`` is,
    #: in two lines
    told: int
    untold: int


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import key_reference

    return key_reference


def documented(text: str) -> dict[str, bool]:
    """Every key of the reference by its whole path, as its tables and their titles have it, and whether anything may
    stand below it, such as the words of a probe."""
    found: dict[str, bool] = {}
    places: list[str] = [""]
    for line in text.splitlines():
        if line.startswith("### "):
            places = re.findall(r"`([^`]*)`", line.partition(" with ")[0])
        row = re.match(r"\| `(\w+)` \| ([^|]*) \|", line)
        if row:
            free = row[2].startswith("NAME: ") and not row[2].startswith("NAME: keys")
            found |= {f"{place}.{row[1]}".lstrip("."): free for place in places}
    return found


def leaves(values: object, place: str = "") -> list[str]:
    if not isinstance(values, dict) or not values:
        return [place]
    return [leaf for key, value in values.items() for leaf in leaves(value, f"{place}.{key}".lstrip("."))]


@pytest.mark.thorough
def test_key_reference_matches_the_settings(reference: ModuleType) -> None:
    assert reference.KEYS.read_text() == reference.page(), "python scripts/key_reference.py writes it anew"


@pytest.mark.parametrize("words", RUNS)
def test_key_reference_covers_composed_run_keys(words: str, reference: ModuleType) -> None:
    patterns = []
    for key, free in documented(reference.KEYS.read_text()).items():
        pattern = re.escape(key).replace("NAME", "[^.]+")
        patterns.append(pattern + r"(?:\..*)?" if free else pattern)
    for key in leaves(compose_jobs(words.split(), None)[0].config):
        told_of_all_groups = key.rpartition(".")[2] in ("name", "kind", "algorithm")
        of_no_group = key in ("fleet", "privacy", "transfer", "model", "training", "partition")  # null
        assert told_of_all_groups or of_no_group or re.fullmatch("|".join(patterns), key), key


def test_key_reference_rejects_undocumented_keys(reference: ModuleType) -> None:
    with pytest.raises(reference.Undocumented, match="Two.untold"):
        reference.rows(Two, "model", {})
    assert reference.field_notes(Two) == {"told": "what `it` is, in two lines"}


def test_key_reference_states_value_ranges(reference: ModuleType) -> None:
    text = reference.KEYS.read_text()
    assert "| `threads` | integer in 1..1024 | `1` |" in text
    assert "| `noise_multiplier` | number 0 or within [0.01, 1000] or `null` |" in text
    assert "| `context` | integer at least 0 |" in text
    assert "| `rounds` | integer at least 1 | `10` to `300` |" in text


def test_key_values_resolved_merges_file_defaults(reference: ModuleType, tmp_path: Path) -> None:
    values = sys.modules["key_values"]
    (tmp_path / "under.yaml").write_text("a: 1\nb: {c: 2, d: 3}\n")
    (tmp_path / "over.yaml").write_text("defaults: [under@x.y, _self_]\nx: {y: {b: {c: 4}}}\n")
    assert values.resolved(tmp_path / "over.yaml") == {"x": {"y": {"a": 1, "b": {"c": 4, "d": 3}}}}
