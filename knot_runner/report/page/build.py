"""A preset's results as one self-contained HTML page: no scripts, no requests, readable offline and in print.

The index of such pages is made from a JSON summary embedded in every page.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.report.claims.view import claims_csv, footnotes, verdict_texts
from knot_runner.report.figures.registry import FIGURES, FigureView, csv_address, draw, figure_names
from knot_runner.report.page.runs import RunsView, Standing, stated_seconds, view_runs
from knot_runner.report.page.settings import SettingsView, view_settings
from knot_runner.report.render.markup import table_csv
from knot_runner.report.render.table_model import ResultTable, block_title, display
from knot_runner.report.render.text import caption, duration, half_text, paper_text, plain, value_text
from knot_runner.report.run_folders import Job, load_runs, nothing_there
from knot_runner.report.tables.build import preset_table
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class PageRequest:
    """Inputs of a page: the preset's name, a one-line description, its ``report:``, the command that makes its runs and
    the one that makes the page."""

    name: str
    about: str
    spec: Mapping[str, Any]
    command: str
    report: str


@dataclass(frozen=True)
class Page:
    """Content of a page; the template prints it and escapes every text. ``verdicts``: on all claims of the preset;
    ``unjudged``: why they could not be judged."""

    request: PageRequest
    table: ResultTable | None
    figures: tuple[FigureView, ...]
    verdicts: tuple[Verdict, ...]
    unjudged: str
    settings: SettingsView
    runs: RunsView

    @property
    def claims(self) -> list[tuple[int, Verdict]]:
        """(Number from 1, verdict) of the claims whose runs the command requests."""
        return [(place, one) for place, one in enumerate(self.verdicts, 1) if one.runs]

    @property
    def tally(self) -> dict[str, int]:
        """Verdict -> number of claims, in order of first occurrence."""
        return dict(Counter(one.verdict for _, one in self.claims))

    @property
    def problems(self) -> list[str]:
        """Lines on figures and claims that failed, with the reasons."""
        found = [f"figure {figure.name}: {figure.problem}" for figure in self.figures if figure.problem]
        return found + ([f"claims: {self.unjudged}"] if self.unjudged else [])


def write_page(path: Path, request: PageRequest, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """Write the page of ``jobs`` to ``path``, atomically; returns its content.

    ``unfinished``: run id -> state of a run without a result. Raises :class:`UserError` if no run is done, like
    :func:`preset_table` for runs that do not make a table, and if the file cannot be written.
    """
    page = build_page(request, jobs, unfinished)
    write_atomic(path, render_page(page, run_links(page, path.parent)))
    return page


def build_page(request: PageRequest, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """Build the content of the page that :func:`write_page` writes."""
    runs = load_runs({job.run_id: job for job in jobs}.values())  # several settings of a grid may be one run
    if not any(run.status in ("done", "diverged") for run in runs):
        raise nothing_there(runs, request.command)
    spec, command = request.spec, request.command
    is_figure = spec.get("kind") in FIGURES
    table = None if is_figure else preset_table(jobs, spec, command)
    notes = spec.get("notes", []) if is_figure else []  # a table has them below it
    figures = tuple(draw(kind, jobs, notes, command) for kind in figure_names(spec))
    verdicts, unjudged = _judged(jobs, spec, command)
    settings = view_settings([job.config for job in jobs])
    return Page(request, table, figures, verdicts, unjudged, settings, view_runs(runs, unfinished))


def _judged(jobs: Sequence[Job], spec: Mapping[str, Any], command: str) -> tuple[tuple[Verdict, ...], str]:
    """Return (verdicts, why claims cannot be judged): a damaged record must not prevent the page."""
    try:
        return tuple(judge(jobs, spec, command)) if spec.get("claims") else (), ""
    except UserError as problem:
        return (), str(problem)


def run_links(page: Page, folder: Path) -> dict[str, str]:
    """Run id -> address of its folder relative to ``folder``, of the runs that have a result."""
    found = {}
    for run, _ in page.runs.jobs:
        if run.result:
            found[run.job.run_id] = quote(Path(os.path.relpath(run.job.folder, folder)).as_posix()) + "/"
    return found


def render_page(page: Page, links: Mapping[str, str] | None = None) -> str:
    """``page`` as HTML. Every text is escaped, with control and invisible characters (ANSI codes) as ``?``. ``links``:
    of :func:`run_links`; without them, runs are named without links."""
    summary = page_summary(page.request.about, page.runs.counts, page.tally, page.runs.span)
    return template("page.html.j2").render(page=page, links=links or {}, summary=summary, summary_name=SUMMARY_NAME)


@functools.cache
def template(name: str) -> Template:
    """A template of this folder. Every text that it prints is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("knot_runner.report.page", "."), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # not the Markup that a macro returns
    )  # fmt: skip
    environment.globals |= {
        one.__name__: one
        for one in (
            block_title, caption, claims_csv, csv_address, display, duration, footnotes, half_text, median, paper_text,
            stated_seconds, table_csv, value_text, verdict_texts,
        )
    }  # fmt: skip
    return environment.get_template(name)


INDEX_FILE = "index.html"
#: Name of the <meta> element with a page's summary.
SUMMARY_NAME = "knot-runner-report"


@dataclass(frozen=True)
class PageEntry:
    """An entry of the index. ``address``: of the page, relative to the index; ``runs``: state -> number of jobs;
    ``claims``: verdict -> number of claims; ``records``: period in which the runs' records were written."""

    preset: str
    address: str
    about: str
    runs: Mapping[str, int]
    claims: Mapping[str, int]
    records: str


def page_summary(about: str, runs: Mapping[str, int], claims: Mapping[str, int], records: str) -> str:
    """The summary of a page for the index, as JSON to embed in the page."""
    return json.dumps({"about": about, "runs": dict(runs), "claims": dict(claims), "records": records})


def write_index(folder: Path) -> list[PageEntry]:
    """Write ``folder/index.html`` for the report pages in ``folder``, sorted by name; returns its entries.

    Raises :class:`UserError` if there is no page.
    """
    pages = sorted(path for path in folder.rglob("*.html") if path.name != INDEX_FILE)
    entries = [entry for path in pages if (entry := read_entry(path, folder))]
    if not entries:
        raise UserError(f"report --index: there is no page in {folder}; 'knot-runner report PRESET' makes one")
    write_atomic(folder / INDEX_FILE, template("index.html.j2").render(entries=entries))
    return entries


def read_entry(path: Path, folder: Path) -> PageEntry | None:
    """The entry from the summary of the page at ``path`` in ``folder``; None if it has none."""
    finder = _SummaryFinder()
    finder.feed(path.read_text(encoding="utf-8", errors="replace"))
    try:
        found = json.loads(finder.content)
        facts = str(found["about"]), _counts(found["runs"]), _counts(found["claims"]), str(found["records"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    page = path.relative_to(folder)
    return PageEntry(page.with_suffix("").as_posix(), quote(page.as_posix()), *facts)


def _counts(found: Any) -> dict[str, int]:
    return {str(name): int(number) for name, number in found.items()}


class _SummaryFinder(HTMLParser):
    """HTML parser that finds a page's first summary, in ``content``."""

    def __init__(self) -> None:
        super().__init__()
        self.content = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        facts = dict(attributes)
        if tag == "meta" and facts.get("name") == SUMMARY_NAME and not self.content:
            self.content = facts.get("content") or ""
