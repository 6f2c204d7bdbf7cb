"""``docs/KEYS.md`` and ``conf/schema.json`` hold every key, as ``scripts/key_reference.py`` writes them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from knot_runner import compose
from tests.changed_settings import leaves
from tests.of_papers import WORDS, of_papers

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    "task=erc method=sinkhorn_e", "task=femnist method=soup fleet=phones",
    "task=femnist method=fedavg privacy=user_level method.aggregation=uniform",
    "task=mnist_fedwad method=clustered_fedrep",
    "task=mnist method=multi_teacher +base/term@method.terms.triplet=triplet training=small", "task=image_sets",
)  # fmt: skip
MOST_WORDS = 6_000


@dataclass
class Two:
    #: what ``it`` is,
    #: in two lines
    told: int
    untold: int


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import key_reference

    return key_reference


@pytest.fixture(scope="module")
def errors() -> Callable[..., str]:
    """Return the function that names the first error of a file's values, "" for none."""
    schema = json.loads((ROOT / "conf" / "schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    def find(values: Any, group: str = "") -> str:
        part = {**schema, "$ref": f"#/definitions/{group}"} if group else schema
        found = jsonschema.exceptions.best_match(jsonschema.Draft7Validator(part).iter_errors(values))
        return "" if found is None else f"{'.'.join(map(str, found.absolute_path))}: {found.message}"

    return find


def documented(text: str) -> set[str]:
    """Return every key of the reference by its whole path."""
    found: set[str] = set()
    places: list[str] = [""]
    for line in text.splitlines():
        if line.startswith("### "):
            places = re.findall(r"`([^`]*)`", line.partition(" (")[0])
            found |= {place.removesuffix("[]") for place in places}
        row = re.match(r"- `(\w+)[=`]", line)
        if row:
            found |= {f"{place}.{row[1]}".lstrip(".") for place in places}
    return found


@pytest.mark.paper(*WORDS)
def test_key_reference_and_schema_match_the_settings(reference: ModuleType) -> None:
    assert reference.KEYS.read_text() == reference.page(), "run python scripts/key_reference.py"
    assert json.loads(reference.SCHEMA.read_text()) == reference.schema(), "run python scripts/key_reference.py"


def test_key_reference_is_short(reference: ModuleType) -> None:
    assert len(reference.KEYS.read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("words", of_papers(RUNS))
def test_key_reference_covers_composed_run_keys(words: str, reference: ModuleType) -> None:
    text = reference.KEYS.read_text()
    patterns = [re.escape(key).replace("NAME", "[^.]+") for key in documented(text)]
    names = ("task.probe", r"task.datasets.\w+.labels", r".*.splits", r"task(.sets.\w+)?.superclasses")
    free = [rf"{place}\..*" for place in names]
    for key, _ in leaves(compose(words.split())[0].config):
        told_of_all_groups = key.rpartition(".")[2] in ("name", "kind", "algorithm")
        of_no_group = key in ("fleet", "privacy", "transfer", "model", "training", "partition")  # null
        assert told_of_all_groups or of_no_group or re.fullmatch("|".join(patterns + free), key), key


def test_key_reference_rejects_undocumented_keys(reference: ModuleType) -> None:
    values = sys.modules["key_values"]
    with pytest.raises(values.Undocumented, match="Two.untold"):
        values.note_of(Two, "untold")
    assert values.field_notes(Two) == {"told": "what `it` is, in two lines"}


def test_key_reference_shows_defaults_and_choices(reference: ModuleType) -> None:
    lines = reference.KEYS.read_text().splitlines()
    for key in ("threads=1", "rounds=3..300", "small_clients=allow|stop|null", "devices=[]"):
        assert any(line.startswith(f"- `{key}`: ") for line in lines), key


def test_schema_accepts_the_package_files(errors: Callable[..., str]) -> None:
    conf = ROOT / "conf"
    groups = [path for path in conf.iterdir() if path.name in ("task", "model", "method", "training", "partition")]
    groups += [conf / name for name in ("transfer", "fleet", "privacy", "hardware", "tracker")]
    files = [(path, group.name) for group in groups for path in group.glob("*.yaml")]
    files += [(path, "") for path in (conf / "experiment").rglob("*.yaml")]
    found = {path: errors(yaml.safe_load(path.read_text()) or {}, group) for path, group in files}
    assert len(found) > 120 and not [f"{path}: {error}" for path, error in found.items() if error]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, "'sed' was unexpected"),
        ({"training": {"rounds": "many"}}, "training.rounds"),
        ({"training": {"rounds": 0}}, "less than the minimum"),
        ({"method": {"temprature": 0.5}}, "method"),
        ({"method": {"aggregation": "median"}}, "method"),
        ({"method": {"algorithm": "fedavg", "mu": 0.1}}, "method"),
        ({"method": {"algorithm": "fedprox", "mu": 0.1}, "training": {"rounds": "${seed}"}}, ""),
    ],
)
def test_schema_finds_mistakes(values: dict[str, Any], message: str, errors: Callable[..., str]) -> None:
    found = errors(values)
    assert message in found and bool(message) == bool(found)


def test_key_values_resolved_merges_file_defaults(reference: ModuleType, tmp_path: Path) -> None:
    values = sys.modules["key_values"]
    (tmp_path / "under.yaml").write_text("a: 1\nb: {c: 2, d: 3}\n")
    (tmp_path / "over.yaml").write_text("defaults: [under@x.y, _self_]\nx: {y: {b: {c: 4}}}\n")
    assert values.resolved(tmp_path / "over.yaml") == {"x": {"y": {"a": 1, "b": {"c": 4, "d": 3}}}}
