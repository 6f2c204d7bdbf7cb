"""``scripts/same_numbers.py`` notices a number that moved, and nothing that only passes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "same_numbers.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("same_numbers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["same_numbers.py", *map(str, arguments)])
    return script.main()


@pytest.mark.thorough
def test_a_command_recorded_twice_is_the_same_and_an_altered_digest_is_not(script, monkeypatch, tmp_path, capsys):
    first, second, other = (tmp_path / f"{name}.json" for name in ("first", "second", "other"))
    for path in (first, second):
        assert main(script, monkeypatch, "record", path, "--only", "distance") == 0
    assert main(script, monkeypatch, "compare", first, second) == 0
    recorded = json.loads(first.read_text())
    assert f"{len(recorded['distance'])} digests, 0 differ" in capsys.readouterr().out and recorded["distance"]
    other.write_text(json.dumps({"distance": {key: "another" for key in recorded["distance"]}}))
    assert main(script, monkeypatch, "compare", first, other) == 1


def test_what_only_passes_is_left_out_and_a_digit_is_not(script, tmp_path):
    result = {"metrics": {"f1": {"ALL": 0.25}}, "seconds": {"total": 1.0}, "code": "0.1.0+a"}
    paths = [tmp_path / name / "result.json" for name in "abc"]
    changes = ({}, {"seconds": {"total": 2.0}, "code": "0.1.0+b"}, {"metrics": {"f1": {"ALL": 0.2500000001}}})
    for path, change in zip(paths, changes, strict=True):
        path.parent.mkdir()
        path.write_text(json.dumps({**result, **change}))
    same, passed, moved = map(script.recorded, paths)
    assert same == passed != moved
