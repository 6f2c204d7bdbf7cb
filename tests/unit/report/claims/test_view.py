"""Verdicts as a table, Markdown, CSV and JSON."""

import csv
import io
import json
from dataclasses import replace

import pytest

from knot_runner.report.claims.verdicts import Verdict
from knot_runner.report.claims.view import claims_csv, claims_markdown, claims_table, footnotes, write_claims
from tests.golden.messages import refuses
from tests.unit.report.made_runs import shown

HELD = Verdict(
    "T=0.05 reaches the target at least twice as fast as T=1 on FEMNIST", "FLex&Chill Table 1", "holds", 2.41, 2.1, 2.8,
    "times", ratio=True, signed=False, claimed="> 2", paper=6.0, seeds=3, p=0.001, adjusted=0.003, runs=6, planned=3,
    basis="seeds, not the test items that they share",
)  # fmt: skip
OPEN = Verdict(
    "Sinkhorn-E has lower SD than Entropy-E on ALL", "KNOT Table 3", "undecided", 0.0082, -0.008, 0.0244, "SD", 3,
    claimed="< 0", paper=-0.03, seeds=5, more_seeds=101, p=0.2, adjusted=0.6, basis="seeds and test items", runs=10,
    note="as said",
)  # fmt: skip
UNASKED = Verdict("on other runs", "somewhere", "no runs")
HOSTILE = "=cmd()|<script>\x1b[31m[red]*x*"
BAD = Verdict(HOSTILE, HOSTILE, "no runs", unit=HOSTILE, runs=2, note=HOSTILE, claimed="> 0")
ALL = [HELD, OPEN, UNASKED, BAD]


@pytest.mark.parametrize("width", [80, 100])
def test_claims_table_fits_width_with_all_numbers(width):
    text = shown(claims_table("Claims of x", ALL), width)
    assert max(map(len, text.splitlines())) <= width and "\x1b" not in text
    for part in ("2.41 times", "[2.10, 2.80]", "paper 6.00", "+0.008 SD", "[-0.008, +0.024]", "> 100 more", "[red]"):
        assert part in text, part
    assert "on other runs" not in text


def test_interval_of_two_seeds_without_a_direction_is_not_shown():
    few, held = replace(OPEN, seeds=2), replace(HELD, seeds=2)
    for verdict, text in (
        (few, "n=2: too few seeds"), (replace(few, low=0.001), "[+0.001, +0.024]"),
        (replace(held, low=0.5), "n=2: too few seeds"), (held, "[2.10, 2.80]"),
    ):  # fmt: skip
        assert text in shown(claims_table("x", [verdict]), 100)


def test_markdown_is_escaped_and_whole():
    text = claims_markdown("Claims of x", ALL)
    row = next(line for line in text.splitlines() if line.startswith("| 1 "))
    assert row.split(" | ")[2:8] == ["holds", "2.41 times", "\\[2.10, 2.80\\]", "&gt; 2", "6.00", "3"]
    assert "<script>" not in text and "\x1b" not in text and "\\|" in text
    assert "more than 100" in text and "on other runs" not in text


def test_claims_csv_writes_claims_without_formulas():
    rows = list(csv.DictReader(io.StringIO(claims_csv(ALL))))
    assert [row["claim"] for row in rows] == ["1", "2", "3", "4"]
    assert (rows[0]["effect"], rows[0]["paper"], rows[1]["more_seeds"], rows[2]["effect"]) == ("2.41", "6", "101", "")
    assert rows[3]["text"].startswith("'=cmd()")


def test_write_claims_writes_files_and_readable_json(tmp_path):
    paths = write_claims("Claims of x", ALL, tmp_path / "claims", "x")
    assert [path.name for path in paths] == ["x.md", "x.csv", "x.json"]
    found = json.loads(paths[2].read_text())
    assert Verdict(**found["claims"][0]) == HELD and found["notes"] == list(footnotes(ALL))
    with refuses():
        write_claims("x", ALL, tmp_path, "../x")


def test_footnotes_count_claims_and_name_noted_ones():
    lines = list(footnotes([HELD, OPEN, OPEN, OPEN, UNASKED]))
    text = "\n".join(lines)
    assert "correction over the 4 claims" in text and "in parts of 2/3, 2/9, 2/27" in text and "plans 3" in text
    assert any(line.startswith("Intervals over seeds only") and line.endswith("claim 1.") for line in lines)
    assert "Ratios are geometric means" in text and "claims 2, 3, 4: as said." in lines
    assert "1 of the preset's claims are about runs that this command does not request." in lines
