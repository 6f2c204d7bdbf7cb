"""The HTML page: complete without a network, the numbers of the table, and no text of a record as markup."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.cli.show import references
from knot_runner.cli.verbs.report import report_command
from knot_runner.composing.commands import compose_all
from knot_runner.report.page.build import Page, build_page, render_page, write_page
from knot_runner.report.page.runs import Standing
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import Job
from tests.golden.messages import refuses
from tests.report.conftest import Factory
from tests.report.pages import Reader, made, page_of, page_request, placed

HOSTILE = "\"'><script>alert(1)</script><img src=//x.example/y onerror=z> {{ 7*7 }} {% raw %} \x1b[31mred\x1b[0m \u202e"


# ---------------------------------------------------------------------------------------------------- what is on it


def test_a_page_needs_nothing_else(finished: list[Job]) -> None:
    text = render_page(page_of(finished, figures=["bias"]))
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in text
    assert not {"script", "iframe", "object", "form", "base"} & {tag for tag, _ in read.tags}
    assert read.addresses and all(a.startswith(("data:", "#")) for a in read.addresses)
    assert {a[1:] for a in read.addresses if a.startswith("#")} <= read.ids
    assert "url(" not in text and "@import" not in text


def test_the_numbers_are_means_and_intervals_of_the_records(finished: list[Job]) -> None:
    rows = Reader(render_page(page_of(finished))).rows
    values = np.array([json.loads((j.folder / "result.json").read_text())["metrics"]["f1"]["ALL"] for j in finished])
    half = 12.7062 * np.std(values[2:], ddof=1) / np.sqrt(2)  # t of one degree of freedom
    row = next(row for row in rows if row[0] == "Sinkhorn-E")
    shown = f"{values[2:].mean():.3f}±{half:.3f}"
    assert row[-1] == f"{shown}(0.41)"  # the paper's, KNOT Table 3
    assert "best" not in {
        name for text in re.findall(r'class="([^"]*)"', render_page(page_of(finished))) for name in text.split()
    }


def test_jobs_that_are_one_run_count_once(finished: list[Job]) -> None:
    view = page_of([*finished, finished[0]], kind="grid", paper=None).runs
    assert len(view.jobs) == 4 and view.counts == {"done": 4}


# ------------------------------------------------------------------------------------------------- what is not there


def test_every_job_has_its_state_and_cause(jobs: list[Job], factory: Factory) -> None:
    factory.write(jobs[0], **made(0))
    factory.write(jobs[1], status="diverged", metrics={}, notes=["diverged in round 3 at client 5"])
    (jobs[2].folder).mkdir()
    (jobs[2].folder / "result.json").write_text('{"status": "do')
    known = {jobs[3].run_id: Standing("failed", "ValueError: no such thing"), jobs[0].run_id: Standing("failed", "old")}
    view = page_of(jobs, known)
    assert [standing.state for _, standing in view.runs.jobs] == ["done", "diverged", "damaged", "failed"]
    assert view.runs.counts == {"done": 1, "diverged": 1, "failed": 1, "damaged": 1}
    text = Reader(render_page(view)).text
    for cause in ("diverged in round 3 at client 5", "cannot be read", "ValueError: no such thing"):
        assert cause in text
    assert "The rest is made by: knot-runner experiment=knot/table3" in text


def test_no_run_is_one_line_and_no_file(jobs: list[Job], tmp_path: Path) -> None:
    path = tmp_path / "reports" / "x.html"
    with refuses():
        write_page(path, page_request(), jobs, {})
    assert not path.exists()


def test_a_figure_that_cannot_be_drawn_says_why(finished: list[Job]) -> None:
    view = page_of(finished, figures=["tsne", "bias"])
    assert "vectors.safetensors: is not there" in view.figures[0].problem and not view.figures[1].problem
    assert view.problems == [f"figure tsne: {view.figures[0].problem}"]
    assert "Not drawn: " in Reader(render_page(view)).text


# ----------------------------------------------------------------------------------------------------- hostile texts


def test_hostile_texts_are_shown_not_run(jobs: list[Job], factory: Factory) -> None:
    factory.write(jobs[0], names=[HOSTILE, "B"], **{**made(0), "device": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    factory.write(jobs[1], status="diverged", metrics={}, notes=[HOSTILE])
    changed = [
        dataclasses.replace(job, config={**job.config, "model": {**job.config["model"], "name": HOSTILE, HOSTILE: 1}})
        for job in jobs
    ]
    request = dataclasses.replace(
        page_request(figures=["bias"], notes=[HOSTILE]), name=HOSTILE, about=HOSTILE, command=HOSTILE
    )
    text = render_page(build_page(request, changed, {jobs[3].run_id: Standing("failed", HOSTILE)}))
    read = Reader(text)
    assert "script" not in {tag for tag, _ in read.tags}
    assert not any("onerror" in names for _, names in read.tags)
    assert all(a.startswith(("data:", "#")) for a in read.addresses)
    assert not {"\x1b", "\u202e"} & set(text)
    assert read.text.count("{{ 7*7 }} {% raw %}") >= 8


@pytest.fixture(scope="module")
def template_page(grid: list[Job], tmp_path_factory: Any) -> Page:
    root = tmp_path_factory.mktemp("page")
    jobs = placed(grid, root)
    Factory(root).write(jobs[0], **made(0))
    return page_of(jobs, {jobs[1].run_id: Standing("failed", "MARK")})


@given(text=st.text(min_size=1, max_size=40))
@settings(max_examples=25, deadline=None)
def test_no_text_changes_the_markup(template_page: Page, text: str) -> None:
    def told(said: str) -> Page:
        """The page with ``said`` as every job's label and cause."""
        runs = [run for run, _ in template_page.runs.jobs]
        labelled = [dataclasses.replace(run, job=dataclasses.replace(run.job, label=said)) for run in runs]
        jobs = tuple((run, Standing("failed", said)) for run in labelled)
        return dataclasses.replace(template_page, runs=dataclasses.replace(template_page.runs, jobs=jobs))

    changed, same = told(text), told("x")
    read = Reader(render_page(changed))
    assert read.tags == Reader(render_page(same)).tags
    assert read.rows[-1][4] == plain(text)


# ------------------------------------------------------------------------------------------------------- the verb


GRID = ["method=entropy_a,sinkhorn_e", "seed=0,1"]


@pytest.mark.thorough
def test_the_verb_writes_the_page(tmp_path: Path, capsys: Any) -> None:
    words = [*GRID, f"paths.out={tmp_path / 'out'}"]
    made_jobs = references(compose_all(["experiment=knot/table3", *words])[0])
    for job in made_jobs[:2]:
        Factory(tmp_path).predictions(Factory(tmp_path).write(job, **made(job.seed)))
    failure = {"kind": "error", "cause": "ValueError: <b>no</b>", "attempts": 2, "at": 1.0}
    made_jobs[2].folder.mkdir(parents=True)
    (made_jobs[2].folder / "failed.json").write_text(json.dumps(failure))
    assert report_command(["knot/table3", *words]) == 0
    said = capsys.readouterr().out.splitlines()
    path = tmp_path / "out" / "reports" / "knot/table3.html"
    assert said == ["2 done, 1 failed, 1 missing of 4 runs", str(path)]
    read = Reader(path.read_text(encoding="utf-8"))
    assert "KNOT Table 3: eight methods on ERC, several seeds" in read.text
    assert "ValueError: <b>no</b> (error, attempts: 2)" in read.text
    assert sorted(p.name for p in path.parent.iterdir()) == ["table3.html"]


@pytest.mark.parametrize("arguments", [[], ["seed=1"], ["../x"]])
def test_the_verb_wants_a_preset(arguments: list[str]) -> None:
    with refuses():
        report_command(arguments)
