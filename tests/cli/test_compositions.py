"""A sample of random compositions: each composes or is refused in one line, and runs as ``engine=loop`` does."""

import re
from pathlib import Path

import pytest

from tests import compositions

GUIDE = Path(__file__).resolve().parents[2] / "conf" / "README.md"
#: Commands of the guide's table of pieces.
PIECES = re.findall(r"\| `(method=[^`]*)` \|$", GUIDE.read_text().partition("## Federated methods by pieces")[2], re.M)


def test_a_sample_composes_or_is_refused_in_one_line(tmp_path):
    codes = []
    for words in compositions.compositions(16, 11):
        found = compositions.composed(words, Path(tmp_path))
        assert not found.wrong, (words, found.wrong, found.said)
        codes.append(found.code)
    assert codes.count(0) >= 2


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_sample_runs_as_the_loop_does(part, tmp_path):
    ran = 0
    for at, words in enumerate(compositions.compositions(400, 12 + part)):
        found = compositions.composed(words, tmp_path / "check")
        if found.code == 0:
            found, difference = compositions.run_small(words, tmp_path / str(at))
            assert not found.wrong and not difference, (words, found.wrong, difference, found.said)
            ran += found.code == 0
        if ran == 2:
            break
    assert ran == 2


@pytest.mark.parametrize("command", PIECES)
def test_the_guides_pieces_go_together(command, tmp_path):
    found = compositions.composed(["task=femnist", *command.split()], tmp_path)
    assert found.code == 0, found.said
    assert len(PIECES) == 5
