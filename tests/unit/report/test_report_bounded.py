"""Intervals of bounded numbers that are no metric stay within their bounds, as those of metrics do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tests.unit.report.claimed import claim, grid, judged, rewrite
from tests.unit.report.compared import ask, heads, made

AUCS = (0.9, 0.99)


def t_interval(values: Any) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), stats.sem(values))
    return float(low), float(high)


def test_compare_cuts_the_interval_of_an_auc_at_1(tmp_path: Path) -> None:
    for seed, value in enumerate(AUCS):
        made(tmp_path, 0.5, {"took": {"auc": value, "seconds": value}}, seed=seed)
    sheet = ask(tmp_path, measures=("took.auc", "took.seconds"))
    auc, seconds = (cell for cell, head in zip(sheet.rows[0], heads(sheet), strict=True) if head.startswith("took."))
    low, high = t_interval(AUCS)
    assert high > 1 and auc.band == (pytest.approx(low), 1.0)
    assert seconds.band == (pytest.approx(low), pytest.approx(high))


def test_a_claim_cuts_it_too(factory: Any) -> None:
    jobs = grid(factory, seeds=2)
    for job in jobs:
        rewrite(job.folder, transfer={"auc": AUCS[job.seed], "area": AUCS[job.seed]})
    asked = [claim(measure=f"result.transfer.{name}", against=None, expect={"above": 0.5}) for name in ("auc", "area")]
    auc, area = judged(jobs, *asked)
    low, high = t_interval(AUCS)
    assert (auc.low, auc.high) == (pytest.approx(low), 1.0)
    assert (area.low, area.high) == (pytest.approx(low), pytest.approx(high))
