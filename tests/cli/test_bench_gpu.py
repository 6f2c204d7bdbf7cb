"""``scripts/bench.py gpu`` on a CPU: its checks hold, tell what does not hold, and one failing line costs no other."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import bench
import bench_gpu


def test_bench_gpu_runs_without_a_gpu(capsys, tmp_path):
    only = ["tf32", "graphs", "W2, loop", "64 x 4"]
    words = ["gpu", "--cpu", "--quick", "--rounds", "1", "--only", *only, "--out", str(tmp_path / "table.md")]
    bench_gpu.main(bench.parsed(words))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(only) and not any("FAILED" in found for _, found in rows)
    assert all(row[1].startswith("not here: a CPU has no ") for row in rows[:2])
    assert "| W2, loop, float32: s a round |" in (tmp_path / "table.md").read_text()
