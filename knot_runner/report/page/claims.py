"""A paper's claims as a page shows them: each with what the runs say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knot_runner.report.claims.verdicts import Verdict, judge
from knot_runner.report.claims.view import (
    claimed_text,
    claims_csv,
    effect_text,
    footnotes,
    interval_text,
    more_text,
)
from knot_runner.report.page.table import csv_address
from knot_runner.report.run_folders import Job
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class ClaimView:
    """A claim and what the runs say of it, every number as text ("" where there is none). ``place``: in the preset's
    list, from 1, by which the notes name it."""

    place: int
    text: str
    source: str
    verdict: str
    effect: str
    interval: str
    claimed: str
    paper: str
    seeds: int
    more: str


@dataclass(frozen=True)
class ClaimsView:
    """The claims that a command asks for the runs of, and how they were judged; ``problem``: why they could not be."""

    rows: tuple[ClaimView, ...] = ()
    notes: tuple[str, ...] = ()
    csv: str = ""
    problem: str = ""

    @property
    def tally(self) -> dict[str, int]:
        """Verdict -> number of claims, in the order met."""
        return dict(Counter(row.verdict for row in self.rows))


def view_claims(jobs: Sequence[Job], spec: Mapping[str, Any], command: str) -> ClaimsView:
    """The claims of a preset whose ``report:`` is ``spec``; what keeps them from being judged is said in their place,
    since a damaged record of theirs need not cost the page."""
    if not spec.get("claims"):
        return ClaimsView()
    try:
        verdicts = judge(jobs, spec, command)
    except UserError as problem:
        return ClaimsView(problem=str(problem))
    rows = tuple(_row(place, one) for place, one in enumerate(verdicts, 1) if one.runs)
    return ClaimsView(rows, tuple(footnotes(verdicts)), csv_address(claims_csv(verdicts)))


def _row(place: int, one: Verdict) -> ClaimView:
    return ClaimView(
        place, one.text, one.source, one.verdict, effect_text(one), interval_text(one), one.claimed, claimed_text(one),
        one.seeds, more_text(one),
    )  # fmt: skip
