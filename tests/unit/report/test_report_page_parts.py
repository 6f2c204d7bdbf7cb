"""What an HTML page is made of: figures, claims, settings and versions."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

from knot_runner.report.claims.verdicts import judge
from knot_runner.report.claims.view import effect_text, footnotes, interval_text
from knot_runner.report.figures import registry as page_figures
from knot_runner.report.page.build import describe_figure, render_page, values_by_setting
from knot_runner.report.run_folders import Job
from tests.golden.messages import refuses
from tests.unit.report.conftest import Factory
from tests.unit.report.pages import Reader, made, page_of

# ------------------------------------------------------------------------------------------------------------ figures


def test_figures_are_in_the_page_as_drawn(finished: list[Job]) -> None:
    (figure,) = page_of(finished, figures=["bias"]).figures
    image = Image.open(io.BytesIO(base64.b64decode(figure.image.partition(",")[2])))
    assert image.format == "PNG"
    assert any(line.startswith("MELD: ") for line in figure.lines)
    assert figure.about.startswith("Bars of B_k")


@pytest.mark.thorough
def test_a_preset_of_a_figure_has_no_table(finished: list[Job]) -> None:
    view = page_of(finished, kind="expected_label")
    assert view.table is None and [figure.name for figure in view.figures] == ["expected_label"]
    assert "table" not in Reader(render_page(view)).ids


@pytest.mark.parametrize("kind", sorted(page_figures.FIGURES))
def test_every_figure_is_described(kind: str) -> None:
    about = describe_figure(kind)
    assert about.endswith(".") and len(about) > 20 and "`" not in about and "eturns" not in about


@pytest.mark.parametrize(
    ("wrong", "said"), [(["curvs"], "did you mean 'curves'"), ("curves", "is not a list"), ([3], "")]
)
def test_figures_that_are_none(wrong: Any, said: str) -> None:
    with refuses():
        page_figures.figure_names({"figures": wrong})


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
    assert all(line in read.text for line in footnotes(judge(finished, spec, "")))


def test_claims_that_cannot_be_judged_say_why(finished: list[Job]) -> None:
    view = page_of(finished, claims=[CLAIM | {"agianst": 1}])
    assert view.claims == [] and "did you mean 'against'" in view.unjudged
    assert view.problems == [f"claims: {view.unjudged}"]
    assert "Not judged: " in Reader(render_page(view)).text


def test_a_preset_without_claims_has_no_such_section(finished: list[Job]) -> None:
    assert "claims" not in Reader(render_page(page_of(finished))).ids


# ---------------------------------------------------------------------------------------- settings, versions


def test_settings_are_shared_or_vary(jobs: list[Job]) -> None:
    found = values_by_setting([job.config for job in jobs])
    assert found["seed"] == ("0", "1")
    assert found["method.name"] == ("entropy_a", "sinkhorn_e")
    assert found["method.loss.epsilon"] == ("(not set)", "0.001")
    assert found["task.name"] == ("erc",)
    assert not any(key.startswith("paths.") for key in found)


def test_mixed_versions_are_flagged(jobs: list[Job], factory: Factory) -> None:
    for job in jobs:
        factory.write(job, **made(job.seed, torch="2.12.0" if job is jobs[3] else "2.13.0"))
    view = page_of(jobs)
    assert view.mixed == ["torch"] and [number for _, number in view.versions] == [3, 1]
    assert "they differ in torch" in Reader(render_page(page_of(jobs))).text


def test_one_version_is_not_flagged(finished: list[Job]) -> None:
    assert page_of(finished).mixed == []
    assert "differ in" not in Reader(render_page(page_of(finished))).text
