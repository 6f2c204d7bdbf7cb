"""What an HTML page is made of: figures, claims, settings, versions and times."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from knot_runner.report.claims.verdicts import judge
from knot_runner.report.claims.view import effect_text, footnotes, interval_text
from knot_runner.report.figures import style as figure_style
from knot_runner.report.page import runs as page_runs
from knot_runner.report.page import settings as page_settings
from knot_runner.report.page.build import render_page
from knot_runner.report.run_folders import Job, load_runs
from knot_runner.results.base import total_costs
from tests.report.conftest import Factory
from tests.report.pages import Reader, made, page_of

# ------------------------------------------------------------------------------------------------------------ figures


def test_figures_are_in_the_page_as_drawn(finished: list[Job]) -> None:
    (figure,) = page_of(finished, figures=["bias"]).figures
    image = Image.open(io.BytesIO(base64.b64decode(figure.image.partition(",")[2])))
    assert image.format == "PNG"
    assert (figure.width, figure.height) == tuple(round(side * 96 / figure_style.DPI) for side in image.size)
    assert any(line.startswith("MELD: ") for line in figure.lines)
    assert figure.about.startswith("Bars of B_k") and "returns" not in figure.about


# ------------------------------------------------------------------------------------------------------------- claims

CLAIM = {
    "text": "Sinkhorn-E has the higher F1 <b>",
    "source": "KNOT Table 3",
    "measure": "f1",
    "dataset": "ALL",
    "of": {"method.name": "sinkhorn_e"},
    "against": {"method.name": "entropy_a"},
    "expect": "higher",
}


def test_claims_stand_with_what_the_runs_say(finished: list[Job]) -> None:
    unasked = CLAIM | {"text": "Sinkhorn-D has", "of": {"method.name": "sinkhorn_d"}}
    spec = {"claims": [CLAIM, unasked]}
    (expected, _) = judge(finished, spec, "")
    view = page_of(finished, **spec)
    ((place, verdict),) = view.claims
    assert (place, verdict) == (1, expected) and (verdict.text, verdict.seeds) == (CLAIM["text"], 2)
    read = Reader(render_page(view))
    shown = next(cells for cells in read.rows if cells[0].startswith("1. Sinkhorn-E has the higher F1 <b>"))
    assert shown[1:4] == [expected.verdict, effect_text(expected), interval_text(expected)]
    assert f"{expected.verdict} 1 of 1 claim" in " ".join(read.text.split())
    assert all(line in read.text for line in footnotes(judge(finished, spec, "")))


def test_claims_that_cannot_be_judged_say_why(finished: list[Job]) -> None:
    view = page_of(finished, claims=[CLAIM | {"agianst": 1}])
    assert view.claims == [] and "did you mean 'against'" in view.unjudged
    assert view.problems == [f"claims: {view.unjudged}"]
    assert "Not judged: " in Reader(render_page(view)).text


# ---------------------------------------------------------------------------------------- settings, versions, time


def test_settings_are_shared_or_vary(jobs: list[Job]) -> None:
    view = page_settings.view_settings([job.config for job in jobs])
    assert view.varying["seed"] == ("0", "1")
    assert view.varying["method.name"] == ("entropy_a", "sinkhorn_e")
    assert view.varying["method.loss.epsilon"] == ("0.001", "(not set)")
    text = "\n".join(view.yaml)
    assert "/secret/place" not in text and "paths" not in view.shared
    whole = yaml.safe_load(text)
    assert whole["training"] == jobs[0].config["training"]
    assert "seed" not in whole and "loss" not in whole["method"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                k: st.one_of(st.integers(0, 1), st.dictionaries(st.sampled_from("ab.c"), st.none())) for k in "xyz"
            },
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_setting_is_in_one_of_the_two(configs: list[dict[str, Any]]) -> None:
    view = page_settings.view_settings(configs)
    flat = [page_settings.setting_leaves(config) for config in configs]
    everywhere = set(flat[0]).intersection(*flat[1:])
    alike = {key for key in everywhere if all(one[key] == flat[0][key] for one in flat)}
    assert set(view.varying) == {".".join(key) for one in flat for key in one} - {".".join(key) for key in alike}
    assert page_settings.setting_leaves(yaml.safe_load("\n".join(view.yaml))) == {key: flat[0][key] for key in alike}


def test_mixed_versions_are_flagged(jobs: list[Job], factory: Factory) -> None:
    for job in jobs:
        factory.write(job, **made(job.seed, torch="2.12.0" if job is jobs[3] else "2.13.0"))
    view = page_of(jobs).runs
    assert view.mixed == ["torch"] and [number for _, number in view.versions] == [3, 1]
    assert "they differ in torch" in Reader(render_page(page_of(jobs))).text


def test_time_of_a_shared_stage_counts_once(finished: list[Job]) -> None:
    """By hand: 'local MELD' 100 s at seed 0, 101 s at seed 1, shared by both methods; 'distil' 7.5 s at each seed."""
    found = page_runs.times(load_runs(finished))
    assert found["local MELD"] == [100, 101]
    assert found["whole run, its last start"] == [10, 11, 10, 11]
    rows = Reader(render_page(page_of(finished))).rows
    assert ["local MELD", "2", "3 min 21 s", "1 min 40 s"] in rows
    assert ["whole run, its last start", "4", "42 s", "10 s"] in rows
    assert page_runs.spent(load_runs(finished)) == pytest.approx(100 + 101 + 7.5 + 7.5)
    assert "3 min 36 s of work" in Reader(render_page(page_of(finished))).text


# --------------------------------------------------------------------------------------------------------------- costs


def test_costs_are_medians_by_task_and_method(jobs: list[Job], factory: Factory) -> None:
    """Jobs are two methods at two seeds; of the first method both seeds state costs, of the second one does."""
    row = {"bytes_up": 1_000, "bytes_down": 3_000, "client_flops": 5_000_000, "server_flops": None}
    first, second, other, silent = jobs
    assert first.method == second.method != other.method
    factory.write(first, **{**made(0), "costs": total_costs([row], 1, "models")})
    factory.write(second, **{**made(1), "costs": total_costs([row | {"bytes_up": 2_000}], None, "models")})
    factory.write(other, **{**made(0), "costs": total_costs([row | {"server_flops": 8_000}], None, "models")})
    factory.write(silent, **made(1))
    view = page_of(jobs)
    found = view.runs.costs
    assert [(one.method, one.runs) for one in found] == [(first.method, 2), (other.method, 1)]
    assert list(found[0].medians.values()) == ["1.5 kB", "3 kB", "4 kB", "5 MFLOP", "-"]
    assert list(found[1].medians.values()) == ["1 kB", "3 kB", "-", "5 MFLOP", "8 kFLOP"]
    shown = [cells[2:] for cells in Reader(render_page(view)).rows]
    assert ["2", "1.5 kB", "3 kB", "4 kB", "5 MFLOP", "-"] in shown
