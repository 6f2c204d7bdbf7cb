"""Runs through the command line, and what their folders hold."""

from __future__ import annotations

import json
from pathlib import Path

from knot_runner.cli.main import main


def run(out: Path, *overrides: str) -> Path:
    """The folder of the run with ``overrides``, which is the newest below ``out``."""
    before = set(out.glob("*/*/*/result.json"))
    assert main([*overrides, f"paths.output_dir={out}"]) == 0
    (found,) = set(out.glob("*/*/*/result.json")) - before
    return found.parent


def records(folder: Path) -> tuple[dict, list[dict]]:
    """Result and rows without times."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    del result["seconds"], result["digest"]
    return result, rows
