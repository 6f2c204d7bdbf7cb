"""A kind of table, a measure of claims and a weighting of teachers that a user adds, each in one file."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from knot_runner.cli.main import main
from knot_runner.config.plugins import load_plugins
from knot_runner.methods.weighting import WEIGHTINGS
from knot_runner.report.claims.measures import CLAIM_MEASURES
from knot_runner.report.tables.build import TABLE_KINDS
from tests.tiny import TINY_IMAGES, TINY_PARTIES, replaced

EXAMPLES = Path(__file__).parents[1] / "plugins"
CONF = f"--config-dir={EXAMPLES / 'conf'}"


@pytest.fixture(autouse=True)
def tables_as_they_were():
    """Plug-ins of one test are not those of the next."""
    tables = (TABLE_KINDS, CLAIM_MEASURES, WEIGHTINGS)
    before = [dict(table.data) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.data.clear()
        table.data.update(entries)
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The command of the preset, whose runs are there, and what it printed."""
    out = tmp_path_factory.mktemp("own")
    small = [one for one in replaced(TINY_IMAGES, "training.rounds=1") if not one.startswith("task=")]
    own = [CONF, *small, f"paths.out={out}"]
    assert main(["experiment=own_table", *own]) == 0
    return out, own


def accuracies(out, method):
    """Last accuracies of each run's clients, [runs, clients]."""
    found = []
    for path in sorted(out.glob(f"femnist/{method}/*/rounds.jsonl")):
        row = json.loads(path.read_text().splitlines()[-1])
        found.append([share for share in row["clients"] if share is not None])
    return np.array(found)


@pytest.mark.thorough
def test_a_kind_of_table_of_ones_own(finished, capsys):
    out, own = finished
    assert main(["table", "own_table", *own]) == 0
    assert "worst tenth of clients" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "tables" / "own_table.csv").open()))
    for method in ("fedavg", "fedavg_chill"):
        found = {row["metric"]: float(row["mean"]) for row in rows if row["method"] == method}
        clients = accuracies(out, method)
        assert found["mean of all clients"] == pytest.approx(100 * clients.mean(), abs=1e-5)
        assert found["worst tenth of clients"] == pytest.approx(100 * clients.min(1).mean(), abs=1e-5)
    assert main(["table", "own_table", *own, "report.kind=fairnes"]) == 2
    assert "there is no table of kind 'fairnes' (did you mean 'fairness'?)" in capsys.readouterr().err


def test_a_measure_of_claims_of_ones_own(finished, capsys):
    out, own = finished
    assert main(["claims", "own_table", *own]) == 0, capsys.readouterr().err
    (verdict,) = json.loads((out / "claims" / "own_table.json").read_text())["claims"]
    effects = [100 * accuracies(out, method).std(1) for method in ("fedavg_chill", "fedavg")]
    assert verdict["effect"] == pytest.approx(effects[0].mean() - effects[1].mean(), abs=1e-9)
    assert verdict["unit"] == "points" and verdict["seeds"] == 2 and verdict["low"] < verdict["high"]


@pytest.mark.thorough
def test_a_damaged_record_is_no_effect_and_a_number_that_runs_lack_is_refused(finished, capsys):
    out, own = finished
    log = sorted(out.glob("femnist/fedavg_chill/*/rounds.jsonl"))[0]
    whole = log.read_bytes()
    log.write_bytes(whole[:-9])
    assert main(["claims", "own_table", *own]) == 0
    log.write_bytes(whole)
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 effects left out" in shown and "rounds.jsonl" in shown
    load_plugins([str(EXAMPLES / "own_claim.py")])
    CLAIM_MEASURES.data["client_spread"] = type(CLAIM_MEASURES["gap"])("points", 2, read=lambda run: None)
    assert main(["claims", "own_table", *own]) == 2
    assert "its runs have no client_spread" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_weighting_of_ones_own(tmp_path, capsys):
    own = [CONF, f"plugins=['{EXAMPLES / 'own_weighting.py'}']", f"paths.out={tmp_path}"]
    losses = {}
    for method in ("sinkhorn_margin", "sinkhorn_a"):
        assert main([*replaced(TINY_PARTIES, f"method={method}"), *own]) == 0, capsys.readouterr().err
        (path,) = tmp_path.glob(f"femnist/{method}/*/result.json")
        losses[method] = json.loads(path.read_text())["metrics"]
    assert losses["sinkhorn_margin"] != losses["sinkhorn_a"]
    q = torch.tensor([[[0.7, 0.2, 0.1], [0.4, 0.2, 0.4]]])
    assert WEIGHTINGS["M"](q, torch.ones(2), None).tolist() == [pytest.approx([0.5, 0.0])]
    del WEIGHTINGS["M"]
    assert main([*replaced(TINY_PARTIES, "method=sinkhorn_margin", "seed=5"), *own[:1], *own[2:]]) == 2
    assert "method.weighting: no weighting 'M'" in capsys.readouterr().err
