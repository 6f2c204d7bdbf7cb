"""Record golden numbers: small runs of every family, and what came of them.

    python -m tests.golden.record                     all entries of numbers.json
    python -m tests.golden.record FedRep "soup"       the named ones

Prints what changed. A number that is equal up to its entry's tolerance stays as it is stored. An entry is added by its
description in `numbers.json`, then its name here. Commit changed numbers by themselves, and say which and why.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import adapter

FILE = Path(__file__).parent / "numbers.json"
#: Largest relative and absolute difference of numbers of float32 on a CPU with other instructions.
LOOSE = 1e-3
#: So many entries of the final arrays are kept, at evenly spaced ranks from the smallest to the largest.
RANKS = 16


def main(arguments: list[str]) -> int:
    """Record the entries that `arguments` name; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an entry of numbers.json; none = all")
    names = parser.parse_args(arguments).names
    content = json.loads(FILE.read_text())
    unknown = [name for name in names if name not in content["entries"]]
    if unknown:
        print(f"numbers.json has no entry {unknown[0]!r}; add its description first", file=sys.stderr)
        return 2
    for name in names or content["entries"]:
        entry = content["entries"][name]
        with tempfile.TemporaryDirectory() as folder:
            computed = compute(described(content, name), Path(folder))
        changes = differences(entry, computed, described(content, name)["tolerance"])
        print(f"{name}: {'; '.join(changes) or 'equal'}", flush=True)
        if changes:
            entry |= computed
    write(content)
    return 0


def described(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the entry `name` with what its base gives: family, tolerance and settings."""
    entry = content["entries"][name]
    base = content["bases"].get(entry.get("base"), {"settings": {}})
    return {**base, **entry, "settings": {**base["settings"], **entry["settings"]}}


def compute(entry: dict[str, Any], out: Path) -> dict[str, Any]:
    """Run `entry` below `out`; return its numbers, and of its final arrays the norm and some entries."""
    outcome = adapter.run(entry["method"], entry["settings"], out)
    computed: dict[str, Any] = {"numbers": outcome.numbers}
    # of a run in float64, what is stored in float32 is left out: where its rounding flips, it is 1e-7 away
    final = outcome.entries(np.float64 if entry["tolerance"] < LOOSE else None)
    if len(final):
        computed["norm"] = float(np.linalg.norm(final.astype(np.float64)))
        computed["entries"] = final[np.linspace(0, len(final) - 1, RANKS).round().astype(int)].tolist()
    return computed


def differences(stored: dict[str, Any], computed: dict[str, Any], tolerance: float) -> list[str]:
    """Return one line per number of `computed` that differs from the `stored` one by over `tolerance`."""
    before, after = _numbers(stored), _numbers(computed)
    lines = []
    for name in before | after:
        old, new = before.get(name), after.get(name)
        if old is None or new is None or not math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
            lines.append(f"{name} {old} -> {new}")
    return lines


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    numbers = dict(entry.get("numbers", {}))
    if "norm" in entry:
        numbers["norm"] = entry["norm"]
    return numbers | {f"entry {rank}": value for rank, value in enumerate(entry.get("entries", []))}


def write(content: dict[str, Any]) -> None:
    """Write `numbers.json`, a line for each part of an entry."""

    def lines(entries: dict[str, Any]) -> str:
        parts = [
            f"  {json.dumps(name)}: {{\n"
            + ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items())
            + "\n  }"
            for name, entry in entries.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n }"

    FILE.write_text(f'{{\n "bases": {lines(content["bases"])},\n "entries": {lines(content["entries"])}\n}}\n')


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
