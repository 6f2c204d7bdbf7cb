"""A preset's results as one HTML page that needs nothing else: no script, no request, readable offline and in print."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.page import claims as page_claims
from knot_runner.report.page import figures as page_figures
from knot_runner.report.page import runs as page_runs
from knot_runner.report.page import settings as page_settings
from knot_runner.report.page import table as page_table
from knot_runner.report.page.claims import ClaimsView
from knot_runner.report.page.figures import FigureView
from knot_runner.report.page.runs import RunsView, Standing
from knot_runner.report.page.settings import SettingsView
from knot_runner.report.page.table import TableView
from knot_runner.report.run_folders import Job, load_runs, nothing_there
from knot_runner.report.tables.build import preset_table
from knot_runner.report.text import plain
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Asked:
    """What a page is of: the preset's name, what it is in a line, its ``report:``, the command that makes its runs and
    the one that makes the page."""

    name: str
    about: str
    spec: Mapping[str, Any]
    command: str
    report: str


@dataclass(frozen=True)
class Page:
    """All that a page shows, as text; the template escapes it."""

    asked: Asked
    table: TableView | None
    figures: tuple[FigureView, ...]
    claims: ClaimsView
    settings: SettingsView
    runs: RunsView

    @property
    def problems(self) -> list[str]:
        """What could not be drawn or judged, and why."""
        found = [f"figure {figure.name}: {figure.problem}" for figure in self.figures if figure.problem]
        return found + ([f"claims: {self.claims.problem}"] if self.claims.problem else [])


def write_page(path: Path, asked: Asked, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """Write the page of ``jobs`` to ``path``, whole or not at all; returns what is on it.

    ``unfinished``: run id -> what is known of a run that has no result. Raises :class:`UserError` when no run is there,
    as :func:`preset_table` for runs that do not make a table, and when the file cannot be written.
    """
    page = build_page(asked, jobs, unfinished)
    write_atomic(path, render_page(page))
    return page


def build_page(asked: Asked, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """What :func:`write_page` writes."""
    runs = load_runs({job.run_id: job for job in jobs}.values())  # some settings of a grid are one run
    if not any(run.status in ("done", "diverged") for run in runs):
        raise nothing_there(runs, asked.command)
    spec, command = asked.spec, asked.command
    is_figure = spec.get("kind") in FIGURES
    table = None if is_figure else page_table.view_table(preset_table(jobs, spec, command))
    notes = spec.get("notes", []) if is_figure else []  # a table has them below it
    figures = [page_figures.draw(kind, jobs, notes, command) for kind in page_figures.kinds(spec)]
    return Page(
        asked,
        table,
        tuple(figures),
        page_claims.view_claims(jobs, spec, command),
        page_settings.view_settings([job.config for job in jobs]),
        page_runs.view_runs(runs, unfinished),
    )


def render_page(page: Page) -> str:
    """``page`` as HTML. Every text is escaped, with control and invisible characters (ANSI codes) as ``?``."""
    return _template().render(page=page)


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("knot_runner.report.page", "."), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # not the Markup that a macro returns
    )  # fmt: skip
    return environment.get_template("page.html.j2")
