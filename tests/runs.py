"""One run in this process, from Python or by the command line, and what its folder holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import knot_runner as kr
from knot_runner.cli.main import main

#: What differs between two runs of the same command.
TIMED = ("seconds", "digest")


@dataclass(frozen=True)
class RunRecord:
    """A finished run's folder, read when it is asked for."""

    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """``result.json`` without times."""
        result = json.loads((self.folder / "result.json").read_text())
        return {key: value for key, value in result.items() if key not in TIMED}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """``rounds.jsonl`` without times."""
        rows = [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]
        return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]

    def tensors(self, name: str = "model") -> dict[str, torch.Tensor]:
        """Those of ``name.safetensors``."""
        return load_file(self.folder / f"{name}.safetensors")


def run(out: Path, *words: str) -> RunRecord:
    """The run with ``words`` below ``out``. Raises ``UserError`` where the command would say so."""
    return RunRecord(kr.run([*words, f"paths.output_dir={out}"]).folder)


def command(out: Path, *words: str) -> RunRecord:
    """The run that the command with ``words`` adds below ``out``."""
    before = set(out.glob("*/*/*/result.json"))
    assert main([*words, f"paths.output_dir={out}"]) == 0
    (path,) = set(out.glob("*/*/*/result.json")) - before
    return RunRecord(path.parent)
