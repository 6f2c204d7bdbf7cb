"""``scripts/bench_fedwad.py`` names what a profile is summed up into; the names must be those of the code."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def test_the_shares_of_a_profile_are_of_functions_that_are_there(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "bench_fedwad", raising=False)
    import bench_fedwad

    settings = dataclasses.replace(bench_fedwad.OPTIONS, samples=40)
    bench_fedwad._print_stages(bench_fedwad.Workload(10, 40), settings)
    shares = re.findall(r"([a-z ,]+) (\d+)%", capsys.readouterr().out)
    assert len(shares) == len(bench_fedwad.STAGES) + 1 and sum(int(share) for _, share in shares) > 20
