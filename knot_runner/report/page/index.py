"""The index of report pages, as one HTML page, from a JSON summary embedded in every page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

INDEX_FILE = "index.html"
#: Name of the <meta> element with a page's summary.
SUMMARY_NAME = "knot-runner-report"
#: Text for an older page without a summary.
NO_SUMMARY = "no summary on the page; knot-runner report makes it anew"


@dataclass(frozen=True)
class PageEntry:
    """An entry of the index. ``address``: of the page, relative to the index; ``runs``: state -> number of jobs;
    ``claims``: verdict -> number of claims; ``records``: period in which the runs' records were written."""

    preset: str
    address: str
    about: str = NO_SUMMARY
    runs: Mapping[str, int] | None = None
    claims: Mapping[str, int] | None = None
    records: str = ""


def page_summary(about: str, runs: Mapping[str, int], claims: Mapping[str, int], records: str) -> str:
    """The summary of a page for the index, as JSON to embed in the page."""
    return json.dumps({"about": about, "runs": dict(runs), "claims": dict(claims), "records": records})


def write_index(folder: Path) -> list[PageEntry]:
    """Write ``folder/index.html`` for the report pages in ``folder``, sorted by name; returns its entries.

    Raises :class:`UserError` if there is no page.
    """
    pages = sorted(path for path in folder.glob("*.html") if path.name != INDEX_FILE)
    if not pages:
        raise UserError(f"report --index: there is no page in {folder}; 'knot-runner report PRESET' makes one")
    entries = [read_entry(path) for path in pages]
    from knot_runner.report.page.build import template

    write_atomic(folder / INDEX_FILE, template("index.html.j2").render(entries=entries))
    return entries


def read_entry(path: Path) -> PageEntry:
    """The entry from the summary of the page at ``path``; without a summary, only its name."""
    finder = _SummaryFinder()
    finder.feed(path.read_text(encoding="utf-8", errors="replace"))
    named = PageEntry(path.stem, quote(path.name))
    try:
        found = json.loads(finder.content)
        return PageEntry(
            path.stem, named.address, str(found["about"]), _counts(found["runs"]), _counts(found["claims"]),
            str(found["records"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return named


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
