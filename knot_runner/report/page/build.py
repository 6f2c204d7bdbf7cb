"""HTML page with the results of a preset, as a single file without scripts."""

from __future__ import annotations

import base64
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from knot_runner.config.strict import without
from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.report.claims.view import asked, footnotes, verdict_texts
from knot_runner.report.compare.settings import flatten_settings
from knot_runner.report.figures.registry import FIGURES, figures_of
from knot_runner.report.render.table_model import ResultTable, display
from knot_runner.report.render.text import caption, cell_texts, duration, plain
from knot_runner.report.run_folders import Job, Run, load_runs, require_results
from knot_runner.report.tables.build import preset_table
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic
from knot_runner.util.processes import temporary_folder

if TYPE_CHECKING:
    from jinja2 import Template

#: Provenance keys of a result. If one of these keys differs, the numbers of two results may differ by rounding, or by
#: more.
MADE_BY = ("code", "device", "threads", "engine", "precision")
#: States of a job, in the order they are shown.
JOB_STATES = ("done", "diverged", "failed", "damaged", "different data", "different version", "running", "missing")
#: Groups of settings that affect no number in a result.
NOT_SHOWN = ("paths", "tracker", "sweep", "report", "fail_fast")
#: Text in place of a setting that a job does not have.
NOT_SET = "(not set)"


@dataclass(frozen=True)
class PageRequest:
    """Inputs of a page.

    Attributes:
        name: The name of the preset.
        about: A description of the preset in one line.
        spec: The preset's section ``report:``.
        command: The command that runs the preset.
        report: The command that creates the page.
    """

    name: str
    about: str
    spec: Config
    command: str
    report: str


@dataclass(frozen=True)
class Standing:
    """The state of a job.

    ``state`` is one of :data:`JOB_STATES`. ``cause`` is the reason why the job is not done; "" for a job that is done.
    """

    state: str
    cause: str = ""


@dataclass(frozen=True)
class FigureView:
    """A figure as shown on a page.

    Attributes:
        about: The description of the figure.
        image: The image as a ``data:`` URL.
        lines: The drawn numbers, as lines of text.
        problem: The reason why the figure could not be drawn, or "".
    """

    name: str
    about: str
    image: str = ""
    lines: Sequence[str] = ()
    problem: str = ""


@dataclass(frozen=True)
class Page:
    """Content of a page.

    Attributes:
        verdicts: The verdicts on all claims of the preset.
        unjudged: The reason why the claims could not be judged, or "".
        settings: A dict from the dotted key of a setting to the distinct values of the setting in all jobs.
        versions: A table of the distinct combinations of software versions and devices. The dict maps the name of
            each column, such as ``code``, to a list. The i-th entries of all lists form the i-th combination.
        version_counts: The i-th entry is the number of runs with the i-th combination. The numbers are descending.
    """

    request: PageRequest
    table: ResultTable | None
    figures: Sequence[FigureView]
    verdicts: Sequence[Verdict]
    unjudged: str
    settings: dict[str, tuple[str, ...]]
    jobs: Sequence[tuple[Run, Standing]]
    versions: dict[str, list[str]]
    version_counts: list[int]

    @property
    def problems(self) -> list[str]:
        """Return one line per problem: a figure that was not drawn, or claims that were not judged."""
        lines = [f"figure {figure.name}: {figure.problem}" for figure in self.figures if figure.problem]
        if self.unjudged:
            lines.append(f"claims: {self.unjudged}")
        return lines

    @property
    def counts(self) -> dict[str, int]:
        """Return a dict from each state to the number of jobs in this state. States without jobs are left out."""
        number = Counter(standing.state for _, standing in self.jobs)
        return {state: number[state] for state in JOB_STATES if number[state]}

    @property
    def mixed(self) -> list[str]:
        """Return each key of ``versions`` that has different values in different runs."""
        return [key for key, values in self.versions.items() if len(set(values)) > 1]


def write_page(path: Path, request: PageRequest, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """Write the page of a preset to ``path`` atomically, and return the content of the page.

    Args:
        path: The path of the HTML file.
        request: The preset and its commands.
        jobs: The jobs of the preset.
        unfinished: A dict from run id to state, for runs without a result.

    Raises:
        UserError: All runs lack a usable result, the runs do not fit the table (see :func:`preset_table`), or the file
            cannot be written.
    """
    page = build_page(request, jobs, unfinished)
    write_atomic(path, render_page(page, path.parent))
    return page


def build_page(request: PageRequest, jobs: Sequence[Job], unfinished: Mapping[str, Standing]) -> Page:
    """Return the content of the page that :func:`write_page` writes."""
    import pandas as pd

    # Several settings of a grid may be one run.
    runs = load_runs({job.run_id: job for job in jobs}.values(), request.command)
    require_results(runs)
    spec = request.spec
    table = None
    notes = spec.get("notes", [])
    if spec.get("kind") not in FIGURES:
        table = preset_table(jobs, spec, request.command)
        notes = []  # the table shows the notes
    figures = [_draw(name, figure, jobs, notes, request.command) for name, figure in figures_of(spec).items()]
    verdicts = []
    unjudged = ""
    if spec.get("claims"):
        try:
            verdicts = judge(jobs, spec, request.command)
        except UserError as problem:  # a damaged record must not prevent the page
            unjudged = str(problem)
    settings = values_by_setting([job.config for job in jobs])
    standings = [(run, _standing(run, unfinished)) for run in runs]
    made_by = []
    for run in runs:
        if run.result:
            made_by.append(run.result.versions | {key: getattr(run.result, key, None) or None for key in MADE_BY})
    facts = pd.DataFrame(made_by, dtype=object).dropna(axis=1, how="all").fillna("-").astype(str).value_counts()
    versions = facts.index.to_frame().to_dict("list")
    return Page(request, table, figures, verdicts, unjudged, settings, standings, versions, facts.tolist())


def _draw(
    name: str, figure: Callable[..., list[str]], jobs: Sequence[Job], notes: Sequence[str], command: str
) -> FigureView:
    """Draw ``figure`` from the records of ``jobs``. If drawing fails, the returned view holds the reason."""
    about = describe_figure(name, figure)
    with temporary_folder() as folder:
        path = folder / f"{name}.png"
        try:
            lines = figure(jobs, path, notes=notes, command=command)
        except UserError as problem:
            return FigureView(name, about, problem=str(problem))
        image = base64.b64encode(path.read_bytes()).decode()
    return FigureView(name, about, f"data:image/png;base64,{image}", lines)


def describe_figure(name: str, figure: Callable[..., list[str]]) -> str:
    """Return the first line of the docstring of ``figure``, or ``name`` for a figure without a docstring."""
    return inspect.cleandoc(figure.__doc__ or name).split("\n")[0]


def values_by_setting(configs: Sequence[Config]) -> dict[str, tuple[str, ...]]:
    """Return a dict from the dotted key of each setting to the setting's distinct values in ``configs``.

    The values are texts, in order of first occurrence. Settings that affect no number in a result are left out.
    """
    import pandas as pd

    flat = pd.DataFrame([flatten_settings(without(dict(config), *NOT_SHOWN)) for config in configs])
    return {key: tuple(values.unique()) for key, values in flat.fillna(NOT_SET).items()}


def _standing(run: Run, unfinished: Mapping[str, Standing]) -> Standing:
    """Return the state of a run and the reason for missing numbers.

    For a diverged run, the reason is its last note, which names the round and client.
    """
    if run.status == "missing":
        return unfinished.get(run.run_id, Standing("missing"))
    if run.status == "diverged" and run.result and run.result.notes:
        return Standing(run.state, run.result.notes[-1])
    return Standing(run.state, run.problem)


def render_page(page: Page, folder: Path | None = None) -> str:
    """Return ``page`` as HTML.

    Every text is escaped, and a ``?`` replaces each control or invisible character.

    Args:
        page: The content of the page.
        folder: The folder of the page. Links to run folders are relative to this folder. If None, the page has no links
            to run folders.
    """
    links = {}
    for run, _ in page.jobs:
        if folder and run.result:
            links[run.run_id] = quote(Path(os.path.relpath(run.folder, folder)).as_posix()) + "/"
    return _template().render(page=page, links=links)


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("knot_runner.report.page", "."), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # leaves the Markup of macros unchanged
    )  # fmt: skip
    names = (asked, caption, cell_texts, display, duration, footnotes, verdict_texts)
    environment.globals |= {function.__name__: function for function in names}
    return environment.get_template("page.html.j2")
