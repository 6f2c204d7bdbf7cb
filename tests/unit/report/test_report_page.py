"""The HTML page: complete without a network, the numbers of the table, and no text of a record as markup."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from knot_runner.cli.parsers import run_verb
from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.page.build import Standing, build_page, render_page, write_page
from knot_runner.report.run_folders import Job
from tests.golden.messages import refuses
from tests.unit.report.conftest import Factory
from tests.unit.report.pages import Reader, made, page_of, page_request

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


def test_facts_at_the_head(finished: list[Job]) -> None:
    text = Reader(render_page(page_of(finished))).text
    assert "done 4 of 4 runs" in " ".join(text.split())
    assert "knot-runner experiment=knot/table3" in text


@pytest.mark.thorough
def test_the_same_records_give_the_same_page(finished: list[Job]) -> None:
    assert render_page(page_of(finished, figures=["bias"])) == render_page(page_of(finished, figures=["bias"]))


def test_jobs_that_are_one_run_count_once(finished: list[Job]) -> None:
    view = page_of([*finished, finished[0]], kind="grid", paper=None)
    assert len(view.jobs) == 4 and view.counts == {"done": 4}


def test_jobs_link_to_their_folders(finished: list[Job], tmp_path: Path) -> None:
    (finished[3].folder / "result.json").unlink()
    reports = tmp_path / "out" / "reports"
    addresses = Reader(render_page(page_of(finished), reports)).addresses
    links = [(reports / unquote(one)).resolve() for one in addresses if not one.startswith(("data:", "#"))]
    assert links == [job.folder.resolve() for job in finished[:3]]


# ------------------------------------------------------------------------------------------------- what is not there


def test_every_job_has_its_state_and_cause(jobs: list[Job], factory: Factory) -> None:
    factory.write(jobs[0], **made(0))
    factory.write(jobs[1], status="diverged", metrics={}, notes=["diverged in round 3 at client 5"])
    (jobs[2].folder).mkdir()
    (jobs[2].folder / "result.json").write_text('{"status": "do')
    known = {jobs[3].run_id: Standing("failed", "ValueError: no such thing"), jobs[0].run_id: Standing("failed", "old")}
    view = page_of(jobs, known)
    assert [standing.state for _, standing in view.jobs] == ["done", "diverged", "damaged", "failed"]
    assert view.counts == {"done": 1, "diverged": 1, "failed": 1, "damaged": 1}
    text = Reader(render_page(view)).text
    for cause in ("diverged in round 3 at client 5", "cannot be read", "ValueError: no such thing"):
        assert cause in text
    assert "The rest is made by: knot-runner experiment=knot/table3" in text


def test_half_of_the_runs(jobs: list[Job], factory: Factory) -> None:
    for job in jobs[::2]:
        factory.write(job, **made(job.seed))
    view = page_of(jobs)
    assert view.counts == {"done": 2, "missing": 2}
    assert "1 of 2 runs" in Reader(render_page(view)).text


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
    assert run_verb("report", ["knot/table3", *words]) == 0
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
        run_verb("report", arguments)


def test_the_verb_without_runs(tmp_path: Path) -> None:
    with refuses():
        run_verb("report", ["knot/table3", *GRID, f"paths.out={tmp_path}"])


@pytest.mark.thorough
def test_a_report_does_not_import_torch() -> None:
    code = "import sys, knot_runner.report.page.build, knot_runner.cli.verbs.report; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
