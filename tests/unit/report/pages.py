"""Making pages of synthetic runs, and reading them back."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.page.build import Page, PageRequest, Standing, build_page
from knot_runner.report.run_folders import Job

if TYPE_CHECKING:
    from tests.unit.report.conftest import Factory

VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """The tags of a page in order, its texts by tag, and every address; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.ids |= {value for name, value in attributes if name == "id" and value}
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def composed() -> list[Job]:
    """Two methods, two seeds of knot/table3."""
    words = ["experiment=knot/table3", "method=entropy_a,sinkhorn_e", "seed=0,1", "paths.data=/secret/place"]
    return references(compose_all(words)[0])


def placed(jobs: list[Job], root: Path) -> list[Job]:
    """``jobs`` below ``root``."""
    return [dataclasses.replace(job, folder=root / job.run_id) for job in jobs]


def finish(jobs: list[Job], factory: Factory) -> list[Job]:
    """Results and predictions of all ``jobs``."""
    for i, job in enumerate(jobs):
        factory.predictions(factory.write(job, base=0.3 + 0.01 * i + 0.05 * job.seed, **made(job.seed)))
    return jobs


def made(seed: int, torch: str = "2.13.0", **seconds: float) -> dict[str, Any]:
    versions = {"knot_runner": "0.1.0", "torch": torch, "python": "3.11.7"}
    times = {"total": 10.0 + seed, "stages": {"local MELD": 100.0 + seed, "distil student": 7.5}} | seconds
    return {"versions": versions, "device": "cpu", "threads": 1, "seconds": times}


def page_request(**spec: Any) -> PageRequest:
    whole = {"kind": "methods", "paper": "knot/table3", "metrics": ["f1", "sd"], "figures": []} | spec
    return PageRequest(
        "knot/table3", "KNOT Table 3", whole, "knot-runner experiment=knot/table3", "knot-runner report x"
    )


def page_of(jobs: list[Job], unfinished: dict[str, Standing] | None = None, **spec: Any) -> Page:
    return build_page(page_request(**spec), jobs, unfinished or {})
