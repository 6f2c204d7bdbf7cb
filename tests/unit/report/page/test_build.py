"""The HTML page: complete without a network, the numbers of the table, and no text of a record as markup."""

import base64
import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from knot_runner.cli.parsers import run_verb
from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.claims.verdicts import judge
from knot_runner.report.claims.view import asked, footnotes, verdict_texts
from knot_runner.report.figures import registry as page_figures
from knot_runner.report.page import build
from tests.golden.messages import refuses
from tests.unit.report.made_runs import Factory


class Reader(HTMLParser):
    """The tags of a page in order, its text, table rows, ids and addresses; fails where tags do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.addresses, self.ids, self.rows, self.text = [], [], [], set(), [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.ids |= {value for name, value in attributes if name == "id" and value}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if "style" not in self.open else ""
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


GRID = ["method=entropy_a,sinkhorn_e", "seed=0,1"]


@pytest.fixture(scope="session")
def grid():
    """Two methods, two seeds."""
    return references(compose_all(["task=erc", *GRID, "paths.data_dir=/secret/place"])[0])


@pytest.fixture
def jobs(grid, tmp_path):
    """Those, with nothing run yet."""
    return [dataclasses.replace(job, folder=tmp_path / job.run_id) for job in grid]


@pytest.fixture
def finished(jobs, factory):
    """Those, all run, with results and predictions."""
    for i, job in enumerate(jobs):
        factory.predictions(factory.write(job, base=0.3 + 0.01 * i + 0.05 * job.seed, **facts(job.seed)))
    return jobs


def facts(seed, torch="2.13.0"):
    versions = {"knot_runner": "0.1.0", "torch": torch, "python": "3.11.7"}
    seconds = {"total": 10.0 + seed, "stages": {"local MELD": 100.0 + seed, "distill student": 7.5}}
    return {"versions": versions, "device": "cpu", "threads": 1, "seconds": seconds}


def page_request(**spec):
    whole = {"kind": "methods", "metrics": ["f1", "sd"], "figures": []} | spec
    command = "knot-runner experiment=mine/methods"
    return build.PageRequest("mine/methods", "Two methods", whole, command, "knot-runner report x")


def page_of(jobs, unfinished=None, **spec):
    return build.build_page(page_request(**spec), jobs, unfinished or {})


HOSTILE = "\"'><script>alert(1)</script><img src=//x.example/y onerror=z> {{ 7*7 }} {% raw %} \x1b[31mred\x1b[0m \u202e"


@pytest.mark.paper("knot")
def test_page_needs_nothing_else(finished):
    text = build.render_page(page_of(finished, figures=["bias"]))
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in text
    assert not {"script", "iframe", "object", "form", "base"} & {tag for tag, _ in read.tags}
    assert read.addresses and all(a.startswith(("data:", "#")) for a in read.addresses)
    assert {a[1:] for a in read.addresses if a.startswith("#")} <= read.ids and "claims" not in read.ids
    assert "url(" not in text and "@import" not in text
    assert text == build.render_page(page_of(finished, figures=["bias"]))  # the same records give the same page


@pytest.mark.paper("knot")
def test_page_fits_narrow_screens(finished):
    text = build.render_page(page_of(finished, figures=["bias"], claims=[CLAIM]))
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    scrolled = re.findall(r'<div class="scroll[^>]*>\s*<(table|img)', text)
    assert len(scrolled) == len(re.findall("<(?:table|img)", text)) > 4  # what is wide scrolls alone, not the page
    assert ".scroll { overflow: auto;" in text and "img { display: block; max-width: 100%;" in text


@pytest.mark.paper("knot")
def test_page_shows_means_and_intervals_of_records(finished):
    text = build.render_page(page_of(finished))
    values = np.array([json.loads((j.folder / "result.json").read_text())["metrics"]["f1"]["ALL"] for j in finished])
    half = 12.7062 * np.std(values[2:], ddof=1) / np.sqrt(2)  # t of one degree of freedom
    row = next(row for row in Reader(text).rows if row[0] == "Sinkhorn-E")
    assert row[-1] == f"{values[2:].mean():.3f}±{half:.3f}"
    assert "done 4 of 4 runs" in " ".join(Reader(text).text.split())


def test_jobs_that_are_one_run_count_once(finished):
    view = page_of([*finished, finished[0]], kind="grid")
    assert len(view.jobs) == 4 and view.counts == {"done": 4}


def test_jobs_link_to_their_folders(finished, tmp_path):
    (finished[3].folder / "result.json").unlink()
    reports = tmp_path / "out" / "reports"
    addresses = Reader(build.render_page(page_of(finished), reports)).addresses
    links = [(reports / unquote(one)).resolve() for one in addresses if not one.startswith(("data:", "#"))]
    assert links == [job.folder.resolve() for job in finished[:3]]


def test_build_page_shows_every_job_state_and_cause(jobs, factory):
    factory.write(jobs[0], **facts(0))
    factory.write(jobs[1], status="diverged", metrics={}, notes=["diverged in round 3 at client 5"])
    (jobs[2].folder).mkdir()
    (jobs[2].folder / "result.json").write_text('{"status": "do')
    known = {
        jobs[3].run_id: build.Standing("failed", "ValueError: no such thing"),
        jobs[0].run_id: build.Standing("failed", "old"),
    }
    view = page_of(jobs, known)
    text = Reader(build.render_page(view)).text
    assert [standing.state for _, standing in view.jobs] == ["done", "diverged", "damaged", "failed"]
    assert view.counts == {"done": 1, "diverged": 1, "failed": 1, "damaged": 1}
    for cause in ("diverged in round 3 at client 5", "cannot be read", "ValueError: no such thing"):
        assert cause in text
    assert "Create the missing runs with: knot-runner experiment=mine/methods" in text
    assert page_of(jobs).counts == {"done": 1, "diverged": 1, "missing": 1, "damaged": 1}


@pytest.mark.paper("knot")
def test_page_embeds_figures_or_their_problem(finished):
    view = page_of(finished, figures=["tsne", "bias"])
    tsne, bias = view.figures
    assert "vectors.safetensors is required" in tsne.problem and view.problems == [f"figure tsne: {tsne.problem}"]
    assert "Not drawn: " in Reader(build.render_page(view)).text
    image = Image.open(io.BytesIO(base64.b64decode(bias.image.partition(",")[2])))
    assert image.format == "PNG" and not bias.problem
    assert any(line.startswith("MELD: ") for line in bias.lines) and bias.about.startswith("Bars of B_k")


@pytest.mark.paper("knot")
def test_page_of_a_figure_has_no_table(finished):
    view = page_of(finished, kind="bias")
    assert view.table is None and [figure.name for figure in view.figures] == ["bias"]
    assert "table" not in Reader(build.render_page(view)).ids


def test_describe_figure_covers_every_figure():
    for kind in page_figures.FIGURES:
        about = build.describe_figure(kind, page_figures.FIGURES[kind])
        assert about.endswith(".") and len(about) > 20 and "`" not in about and "eturns" not in about, kind


CLAIM = {
    "text": "Sinkhorn-E has the higher F1 <b>", "source": "KNOT Table 3", "measure": "f1", "dataset": "ALL",
    "of": {"method.name": "sinkhorn_e"}, "against": {"method.name": "entropy_a"}, "expect": "higher",
}  # fmt: skip


def test_page_shows_claims_with_verdicts(finished):
    unasked = CLAIM | {"text": "Sinkhorn-D has", "of": {"method.name": "sinkhorn_d"}}
    spec = {"claims": [CLAIM, unasked]}
    (expected, _) = judge(finished, spec, "")
    view = page_of(finished, **spec)
    ((place, verdict),) = asked(view.verdicts)
    assert (place, verdict) == (1, expected) and (verdict.text, verdict.seeds) == (CLAIM["text"], 2)
    read = Reader(build.render_page(view))
    cells = next(cells for cells in read.rows if cells[0].startswith("1. Sinkhorn-E has the higher F1 <b>"))
    assert cells[1:4] == [expected.verdict, *verdict_texts(expected)[:2]]
    assert all(line in read.text for line in footnotes(judge(finished, spec, "")))


def test_page_reports_claims_that_cannot_be_judged(finished):
    view = page_of(finished, claims=[CLAIM | {"agianst": 1}])
    assert asked(view.verdicts) == [] and "did you mean 'against'" in view.unjudged
    assert view.problems == [f"claims: {view.unjudged}"]
    assert "Not judged: " in Reader(build.render_page(view)).text


def test_settings_are_shared_or_vary(jobs):
    found = build.values_by_setting([job.config for job in jobs])
    assert found["seed"] == ("0", "1")
    assert found["method.name"] == ("entropy_a", "sinkhorn_e")
    assert found["method.loss.epsilon"] == ("(not set)", "0.001")
    assert found["task.name"] == ("erc",)
    assert not any(key.startswith("paths.") for key in found)


@pytest.mark.parametrize(("other", "mixed"), [("2.12.0", ["torch"]), ("2.13.0", [])])
def test_mixed_versions_are_flagged(jobs, factory, other, mixed):
    for job in jobs:
        factory.write(job, **facts(job.seed, torch=other if job is jobs[3] else "2.13.0"))
    view = page_of(jobs)
    assert view.mixed == mixed and view.version_counts == ([3, 1] if mixed else [4])
    assert ("they differ in torch" in Reader(build.render_page(view)).text) == bool(mixed)


@pytest.mark.paper("knot")
def test_hostile_texts_are_shown_and_not_run(jobs, factory):
    factory.write(jobs[0], names=[HOSTILE, "B"], **{**facts(0), "device": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    factory.write(jobs[1], status="diverged", metrics={}, notes=[HOSTILE])
    changed = []
    for job in jobs:
        config = {**job.config, "model": {**job.config["model"], "name": HOSTILE, HOSTILE: 1}}
        changed.append(dataclasses.replace(job, config=config))
    request = page_request(figures=["bias"], notes=[HOSTILE])
    request = dataclasses.replace(request, name=HOSTILE, about=HOSTILE, command=HOSTILE)
    text = build.render_page(build.build_page(request, changed, {jobs[3].run_id: build.Standing("failed", HOSTILE)}))
    read = Reader(text)
    assert "script" not in {tag for tag, _ in read.tags}
    assert not any("onerror" in names for _, names in read.tags)
    assert all(a.startswith(("data:", "#")) for a in read.addresses)
    assert not {"\x1b", "\u202e"} & set(text)
    assert read.text.count("{{ 7*7 }} {% raw %}") >= 8


PRESET = """\
# @package _global_
# knot-runner experiment=mine/methods
# Two methods on ERC
defaults:
  - override /task: erc
report:
  kind: methods
  metrics: [f1]
"""


def test_report_verb_writes_the_page(tmp_path, capsys):
    preset = tmp_path / "conf" / "experiment" / "mine" / "methods.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(PRESET)
    words = [*GRID, f"--config-dir={tmp_path / 'conf'}", f"paths.output_dir={tmp_path / 'out'}"]
    jobs = references(compose_all(["experiment=mine/methods", *words])[0])
    for job in jobs[:2]:
        Factory(tmp_path).predictions(Factory(tmp_path).write(job, **facts(job.seed)))
    failure = {"kind": "error", "cause": "ValueError: <b>no</b>", "attempts": 2, "at": 1.0}
    jobs[2].folder.mkdir(parents=True)
    (jobs[2].folder / "failed.json").write_text(json.dumps(failure))
    assert run_verb("report", ["mine/methods", *words]) == 0
    path = tmp_path / "out" / "reports" / "mine" / "methods.html"
    assert capsys.readouterr().out.splitlines() == ["2 done, 1 failed, 1 missing of 4 runs", str(path)]
    read = Reader(path.read_text(encoding="utf-8"))
    assert "Two methods on ERC" in read.text
    assert "ValueError: <b>no</b> (error, attempts: 2)" in read.text
    assert [p.name for p in path.parent.iterdir()] == ["methods.html"]


def test_report_verb_requires_runs(tmp_path):
    with refuses():
        run_verb("report", ["federated/fedprox", "seed=0", f"paths.output_dir={tmp_path}"])
    assert not list(tmp_path.rglob("*.html"))
