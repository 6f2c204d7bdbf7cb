"""The figure and the claim of generalization bounds over several limits, and slopes by hand."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from knot_runner import FIGURES, compose
from knot_runner.cli.show import references
from knot_runner.papers.knot import bound_report as figure_bound
from knot_runner.papers.knot.bound_report import slope_line, slope_of
from knot_runner.report.run_folders import load_runs
from tests.contents import read_content
from tests.papers.knot.test_bound_runs import BOUNDED, run


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Jobs of two limits and two seeds, done."""
    out = tmp_path_factory.mktemp("grid")
    words = [*BOUNDED, "method.bound=true", "training.distill.max_examples=20,60", "seed=0,1"]
    jobs = compose([*words, f"paths.output_dir={out}"])
    for job in jobs:
        limit, seed = job.settings.training.distill.max_examples, job.settings.seed
        run(out, [*BOUNDED, "method.bound=true", f"training.distill.max_examples={limit}", f"seed={seed}"])
    return jobs


def test_bound_figure_and_its_numbers(grid, tmp_path):
    lines = FIGURES["bound"](references(grid), tmp_path / "bound.png")
    results = {
        (job.settings.training.distill.max_examples, job.settings.seed): read_content(job.folder) for job in grid
    }
    gaps = [results[20, seed]["bound"]["gap"] for seed in (0, 1)]
    assert all(result["bound"]["texts"] == limit for (limit, _), result in results.items())
    slopes = ["slope of log gap", "slope of log gap, less the start's"]
    assert [line.partition(" on")[0] for line in lines[:2]] == slopes
    records = [json.loads((job.folder / "bound.json").read_text()) for job in grid]
    sharp = [one["rows"][2] for one in records if one["texts"]["train"] == 60]
    added = np.mean([row["second"] + row["third"] for row in sharp])
    rows = list(csv.DictReader((tmp_path / "bound.csv").open()))
    means = {(row["series"], row["texts"]): float(row["mean"]) for row in rows}
    assert means["gap", "20"] == pytest.approx(np.mean(gaps), rel=1e-5)
    assert means["sharp, last_layer", "60"] == pytest.approx(added, rel=1e-5)


def test_bound_figure_rejects_run_without_bound(tmp_path):
    run(tmp_path, BOUNDED)
    (job,) = compose([*BOUNDED, f"paths.output_dir={tmp_path}"])
    with pytest.raises(Exception, match=r"has no bound. Rerun it with method.bound=true"):
        FIGURES["bound"](references([job]), tmp_path / "bound.png")


def series(*values):
    """Points of seed 0, 1, ... at 100, 400, ... texts."""
    points = [("gap", s, 100 * 4**i, value) for s, of_seed in enumerate(values) for i, value in enumerate(of_seed)]
    return pd.DataFrame(points, columns=figure_bound.POINT)


def test_slope_by_hand():
    found = slope_of(series([4.0, 2.0, 1.0], [8.0, 4.0, 2.0]))
    assert found.mean == pytest.approx(-0.5) and found.half == pytest.approx(0, abs=1e-9) and found.n == 2
    bent = series([4.0, 2.0, 1.0], [16.0, 4.0, 1.0], [1.0, -1.0, 1.0])
    found = slope_of(bent)
    assert found.mean == pytest.approx(-0.75) and found.half > 0 and found.n == 2
    assert slope_line("gap", bent).endswith(
        "over 2 seeds; the bounds have -0.5; 1 of 3 seeds left out, with a gap of 0 or less"
    )
    rising = series([-1.0, 1.0])
    assert slope_of(rising) is None
    assert "none; no seed of 1 has gaps above 0" in slope_line("gap", rising)


def test_gap_points_align_seeds_with_different_duplicates(grid, monkeypatch):
    real = figure_bound._record

    def with_duplicate(one):
        record = real(one)
        if one.seed == 1:
            texts, dropped = record["texts"], record["dropped"]
            record |= {"texts": {**texts, "train": texts["train"] - 1}, "dropped": {**dropped, "train": 1}}
        return record

    monkeypatch.setattr(figure_bound, "_record", with_duplicate)
    points = figure_bound.gap_points(load_runs(references(grid)))
    assert {*zip(points.seed, points.texts, strict=True)} == {(0, 20), (0, 60), (1, 20), (1, 60)}
