"""The figure and the claim of generalisation bounds over several limits, and slopes by hand."""

import json
import math

import numpy as np
import pytest

from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_jobs
from knot_runner.records import read_result
from knot_runner.report.figures.bound import slope_line, slope_of
from knot_runner.report.figures.registry import FIGURES
from tests.bounded import BOUNDED, run


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Jobs of two limits and two seeds, done."""
    out = tmp_path_factory.mktemp("grid")
    words = [*BOUNDED, "method.bound=true", "training.distil.limit=20,60", "seed=0,1", f"paths.out={out}"]
    jobs = compose_jobs(words, None)
    for job in jobs:
        limit, seed = job.settings.training.distil.limit, job.settings.seed
        run(out, [*BOUNDED, "method.bound=true", f"training.distil.limit={limit}", f"seed={seed}"])
    return jobs


@pytest.mark.thorough
def test_the_figure_and_its_numbers(grid, tmp_path):
    lines = FIGURES["bound"](references(grid), tmp_path / "bound.png")
    results = {(job.settings.training.distil.limit, job.settings.seed): read_result(job.folder) for job in grid}
    gaps = [results[20, seed]["bound"]["gap"] for seed in (0, 1)]
    assert all(result["bound"]["texts"] == limit for (limit, _), result in results.items())
    assert any(line.startswith(f"gap, 20 texts: {np.mean(gaps):.4g} +- ") for line in lines)
    records = [json.loads((job.folder / "bound.json").read_text()) for job in grid]
    sharp = [one["rows"][2] for one in records if one["texts"]["train"] == 60]
    added = np.mean([row["second"] + row["third"] for row in sharp])
    assert any(line.startswith(f"sharp, last_layer, 60 texts: {added:.4g} +- ") for line in lines)
    assert any(line.startswith("slope of log gap on log N: ") for line in lines)
    rows = (tmp_path / "bound.csv").read_text().splitlines()
    assert rows[0] == "series,texts,seed_rank,value" and len(rows) == 1 + 4 * 12
    assert any("training.distil.limit: 20 of transfer's" in note for note in results[20, 0]["notes"])


def test_the_slope_by_hand():
    sizes = [100, 400, 1600]
    exact = {n: [3 / math.sqrt(n), 5 / math.sqrt(n)] for n in sizes}
    found = slope_of(exact)
    assert found.mean == pytest.approx(-0.5) and found.half == pytest.approx(0, abs=1e-9) and found.n == 2
    bent = {n: [3 / math.sqrt(n), 5 / n, -1.0 if n == 400 else 1.0] for n in sizes}
    found = slope_of(bent)
    assert found.mean == pytest.approx(-0.75) and found.half > 0 and found.n == 2
    assert slope_line("gap", bent).endswith(
        "over 2 seeds; the bounds have -0.5; 1 of 3 seeds left out, with a gap of 0 or less"
    )
    assert slope_of({100: [-1.0], 200: [1.0]}) is None
    assert "none; no seed of 1 has gaps above 0" in slope_line("gap", {100: [-1.0], 200: [1.0]})
