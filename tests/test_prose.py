"""What a person reads in ``conf/`` and in the guides: numbers have their leading zero, and no guide repeats another."""

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


#: Words in a row that no two guides have; what tables of results are headed with is shorter.
IN_A_ROW = 20
GUIDES = [path for path in READ if path.suffix == ".md" and path.name != "CHANGELOG.md"]


def words_in_a_row(text: str) -> set[tuple[str, ...]]:
    """Every :data:`IN_A_ROW` words that follow each other in a guide's prose and tables; commands and code aside."""
    prose = re.sub(r"^    .*$", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    words = re.findall(r"[\w.']+", re.sub(r"\]\([^)]*\)", "]", prose).lower())  # links by their text alone
    return {tuple(words[start : start + IN_A_ROW]) for start in range(len(words) - IN_A_ROW + 1)}


def repeated(guides: dict[str, str]) -> list[str]:
    """For each two guides that share words in a row: their names and one such row."""
    found = [(name, words_in_a_row(text)) for name, text in sorted(guides.items())]
    both = [(one, two, rows & others) for one, rows in found for two, others in found if one < two]
    return [f"{one}, {two}: {' '.join(min(shared))}" for one, two, shared in both if shared]


def test_a_sentence_in_two_guides_is_found() -> None:
    said = "A job that another process is running is left for last, and\nthen found finished, in every sweep there is."
    guides = {"a.md": f"# A\n\n{said}\n", "b.md": f"- First. {said.replace(' is ', '  is ')} More.", "c.md": said[:60]}
    assert [line.split(":")[0] for line in repeated(guides)] == ["a.md, b.md"]


def test_no_guide_repeats_another() -> None:
    """What two guides would explain stands in one of them, and the other links there."""
    assert len(GUIDES) > 20
    assert not repeated({str(path.relative_to(ROOT)): path.read_text() for path in GUIDES})
