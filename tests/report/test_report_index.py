"""The index of report pages: what each says of itself, escaped; and links from numbers and jobs to run folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from knot_runner.cli.main import main
from knot_runner.report.page.build import (
    PageEntry,
    page_summary,
    read_entry,
    render_page,
    run_links,
    write_index,
    write_page,
)
from knot_runner.report.run_folders import Job
from tests.report.pages import Reader, page_of, page_request

HOSTILE = "\"'><script>alert(1)</script> {{ 7*7 }} \x1b[31m"
CLAIM = {
    "text": "one is higher", "source": "here", "measure": "f1", "dataset": "ALL", "expect": "higher",
    "of": {"method.name": "sinkhorn_e"}, "against": {"method.name": "entropy_a"},
}  # fmt: skip


def test_the_index_says_what_the_pages_say(finished: list[Job], tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    page = write_page(reports / "knot/table3.html", page_request(claims=[CLAIM]), finished, {})
    assert page.tally  # some verdict is on it
    (reports / "foreign.html").write_text("<p>no report</p>")
    (reports / "broken.html").write_text('<meta name="knot-runner-report" content="[1]">')
    for _ in range(2):  # the index is none of the pages
        entries = write_index(reports)
    expected = PageEntry("knot/table3", "knot/table3.html", "KNOT Table 3", {"done": 4}, page.tally, page.runs.span)
    assert entries == [expected]
    read = Reader((reports / "index.html").read_text())
    (verdict,) = page.tally
    cells = [[" ".join(cell.split()) for cell in row] for row in read.rows]
    assert cells[1] == ["knot/table3", "KNOT Table 3", f"{verdict} 1", "done 4", page.runs.span]
    assert read.addresses == ["data:,", "knot/table3.html"]


def test_nothing_on_a_page_becomes_markup_in_the_index(tmp_path: Path) -> None:
    summary = page_summary(HOSTILE, {HOSTILE: 1}, {HOSTILE: 2}, HOSTILE)
    escaped = summary.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    (tmp_path / "a b#?.html").write_text(f'<meta name="knot-runner-report" content="{escaped}">')
    assert read_entry(tmp_path / "a b#?.html", tmp_path).about == HOSTILE
    write_index(tmp_path)
    text = (tmp_path / "index.html").read_text()
    read = Reader(text)
    assert "script" not in {tag for tag, _ in read.tags} and "\x1b" not in text and "49" not in read.text
    assert read.addresses[-1] == "a%20b%23%3F.html"


def test_numbers_and_jobs_lead_to_their_runs(finished: list[Job], tmp_path: Path) -> None:
    page = page_of(finished)
    links = run_links(page, tmp_path / "out" / "reports")
    assert {run_id: (tmp_path / "out" / "reports" / unquote(link)).resolve() for run_id, link in links.items()} == {
        job.run_id: job.folder.resolve() for job in finished
    }
    text = render_page(page, links)
    read = Reader(text)
    assert [a for a in read.addresses if a in links.values()] == [links[job.run_id] for job in finished]
    assert f'title="{", ".join(job.run_id for job in finished[2:])}"' in text  # two seeds of one method
    alone = page_of(finished[:1])
    one = Reader(render_page(alone, links)).addresses
    assert one.count(links[finished[0].run_id]) > 1  # cells and the job


def test_the_verb_writes_it_and_says_what_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"paths.out={tmp_path}"
    assert main(["report", "--index", place]) == 2
    said = f"report --index: there is no page in {tmp_path / 'reports'}; 'knot-runner report PRESET' makes one"
    assert said in capsys.readouterr().err
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "x.html").write_text(
        """<meta name="knot-runner-report" content='{"about": "", "runs": {}, "claims": {}, "records": ""}'>"""
    )
    assert main(["report", place, "--index"]) == 0
    assert capsys.readouterr().out.splitlines() == ["1 page", str(tmp_path / "reports" / "index.html")]
    assert main(["report", "--index", "knot/table3"]) == 2
    assert "report --index: takes paths.out=DIR alone, not 'knot/table3'" in capsys.readouterr().err
