"""What a person reads in ``conf/`` and in the guides: numbers have their leading zero, as programs print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
READ = sorted([*ROOT.glob("*.md"), *(path for at in ("conf", "knot_runner", "scripts", "tests") for path in
               (ROOT / at).rglob("*.md")), *(ROOT / "conf").rglob("*.yaml")])  # fmt: skip
#: A point before a digit that continues nothing: no version (1.2), module path (a.b), range (0..5) or format ({:.3f}).
WITHOUT_ZERO = re.compile(r"(?<![\w.\])/}{:\\])\.\d[\d.%]*")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("within .02, Dirichlet(.5), T=.25, -.5 and [.1]", [".02", ".5", ".25", ".5", ".1"]),
        ("alpha: .5", [".5"]),
        ("0.02, 1e-4, 1..5, v1.2.3, data_batch_1..5, report.page, a/.5x, {:.3f}, fig.2, f(x).1", []),
    ],
)
def test_what_counts_as_a_number_without_its_zero(text: str, found: list[str]) -> None:
    assert [one.rstrip(".") for one in WITHOUT_ZERO.findall(text)] == found


def test_numbers_have_their_leading_zero() -> None:
    """``within 0.02``, not ``within .02``, in every text of a preset, a guide and a comment of ``conf/``."""
    assert len(READ) > 200
    found = [
        f"{path.relative_to(ROOT)}:{number}: {', '.join(WITHOUT_ZERO.findall(line))}"
        for path in READ
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WITHOUT_ZERO.search(line)
    ]
    assert not found
