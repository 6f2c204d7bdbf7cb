"""Runs of a fleet: their clock, clusters and personalization."""

import json

import pytest
import torch

from knot_runner.cli.main import main
from tests.feddf_runs import run
from tests.personal_runs import PERSONAL
from tests.tiny import TINY_IMAGES, replaced

FLEET = replaced(TINY_IMAGES, "fleet=phones", "training.lr=0.1", "fleet.dropout=0.3", "fleet.compute.sigma=2")
ASYNC = replaced(FLEET, "fleet=phones_async", "fleet.buffer=2", "training.rounds=6")
FACTS = {"clock", "arrived", "dropped", "late", "partial", "empty", "staleness"}


def test_fleet_run_records_its_clock(tmp_path, capsys):
    result, rows, weights = run(tmp_path, *ASYNC, "training.target=0.15")
    said = capsys.readouterr()
    assert "virtual clock: target after" in said.out and "the clock is simulated and counts virtual seconds" in said.err
    clocks = [row["clock"] for row in rows]
    assert clocks == sorted(clocks) and len(set(clocks)) > 1 and any(row["staleness"] for row in rows)
    assert set(result["fleet"]) == FACTS and result["fleet"]["clock"] == clocks[-1]
    assert result["fleet"]["dropped"] == sum(row["dropped"] for row in rows) > 0
    assert result["fleet"]["arrived"] == sum(len(row["participants"]) for row in rows)
    stale = sum(row["staleness"] * len(row["participants"]) for row in rows)
    assert result["fleet"]["staleness"] == pytest.approx(stale / result["fleet"]["arrived"])
    reached_at = next(row["clock"] for row in rows if row["accuracy"] >= 0.15)
    assert result["time_to_target"] == reached_at
    assert not any("fleet" in name for name in weights)


def test_fleet_of_one_cluster_equals_unclustered_fleet(tmp_path):
    words = replaced(FLEET, "method=clustered_fedavg", "method.clustering.graph=none")
    clustered, rows, weights = run(tmp_path / "one", *words)
    plain, same, wanted = run(tmp_path / "plain", *FLEET, "method.aggregation=uniform")
    assert clustered["fleet"] == plain["fleet"]
    for key in ("clock", "dropped", "participants"):
        assert [row[key] for row in rows] == [row[key] for row in same]
    assert all(torch.equal(weights[f"cluster/0/{name}"], value) for name, value in wanted.items())
    assert main([*words, "fleet.compute.median=10", f"paths.output_dir={tmp_path / 'one'}"]) == 0
    both = [json.loads(path.read_text())["fleet"]["clock"] for path in (tmp_path / "one").glob("*/*/*/result.json")]
    assert max(both) > 100 * min(both)  # another fleet's clusters are others
    _, _, kept = run(tmp_path / "async", *replaced(ASYNC, "method=clustered_fedavg", "method.clustering.graph=none"))
    assert not any("fleet/" in name for name in kept)  # what those who still train were sent


def test_personalization_continues_from_fleet_rounds(tmp_path):
    """Personalization uses the temperatures of the rounds, which depend on the speed of each client."""
    slow = "method.stragglers={share:0.5,temperature:0.5,epochs:1,by:speed}"
    words = replaced(FLEET, "method=finetune", *PERSONAL, slow, "training.rounds=2")
    result, rows, _ = run(tmp_path, *words)
    assert "personalization" in result and result["fleet"]["clock"] == rows[-1]["clock"]
