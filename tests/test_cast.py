"""``scripts/cast.py``: what a terminal shows of a session, and the picture of it."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def cast(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("cast")


def texts(screen):
    return ["".join(character for character, _ in line).rstrip() for line in screen.lines]


def test_a_screen_is_what_a_terminal_would_show(cast):
    """Two lines that rich replaces, in pieces that end within a sequence; a long line goes on below."""
    screen = cast.Screen()
    for text in ("one\r\ntwo\r\nthree", "\x1b[2K\x1b[1", "A\x1b[2K\r\x1b[?25l\x1b[38;5;197mTWO\x1b", "[0m!\n\rfour"):
        screen.write(text)
    assert texts(screen) == ["one", "TWO!", "four"]
    assert [colour for _, colour in screen.lines[1]] == ["#ff005f"] * 3 + [cast.INK]
    screen.write("\r\n" + "x" * 81 + "\rab")
    assert texts(screen)[3:] == ["x" * 80, "ab"]
    with pytest.raises(SystemExit, match=r"ESC\[5H, which is not drawn"):
        screen.write("\x1b[5H")


def test_colours_are_those_of_xterm(cast):
    assert [cast.xterm(number) for number in (16, 196, 237, 255)] == ["#000000", "#ff0000", "#3a3a3a", "#eeeeee"]
    codes = ("32", "1;32", "2", "1", "0", "")
    assert [cast.coloured(code, "#123456") for code in codes] == [
        cast.NAMED["32"], cast.NAMED["32"], cast.DIM, "#123456", cast.INK, cast.INK
    ]  # fmt: skip


def test_a_session_is_recorded_and_drawn(cast, tmp_path, capfd):
    """Each line for the time that it stood; without an animation the end is seen."""
    said = "import sys, time; print(sys.stdout.isatty()); time.sleep(0.2); print('\\x1b[1A\\x1b[2K<b> é')"
    assert cast.main(["record", str(tmp_path / "a.cast"), sys.executable, "-SIc", said]) == 0
    head, *rows, last = [json.loads(line) for line in (tmp_path / "a.cast").read_text().splitlines()]
    assert head["version"] == 2 and head["width"] == 80 and [kind for _, kind, _ in rows] == ["o"] * len(rows)
    assert "".join(text for *_, text in rows) == "True\r\n\x1b[1A\x1b[2K<b> é\r\n" and last[1] == "m"
    assert cast.main(["draw", str(tmp_path / "a.cast"), str(tmp_path / "a.svg")]) == 0
    page = ElementTree.parse(tmp_path / "a.svg").getroot()
    groups = {
        group.find(f"{SVG}text").text: group for group in page.iter(f"{SVG}g") if group.find(f"{SVG}text") is not None
    }
    assert [text.split()[0] for text in groups] == ["True", "$", "<b>"]
    assert groups["True"].get("visibility") == "hidden" and groups["True"].find(f"{SVG}set").get("to") == "visible"
    assert groups["<b> é"].get("visibility") is None and groups["<b> é"].find(f"{SVG}set").get("to") == "hidden"
    assert next(iter(groups["<b> é"].iter(f"{SVG}set"))).get("dur") == "20.00s"
    assert "shown in 20" in (tmp_path / "a.svg").read_text()
    assert cast.main([]) == 2


def test_readmes_cast_is_of_the_quickstart():
    """Its end is the output that README prints, number by number."""
    page = ElementTree.parse(ROOT / "scripts" / "pictures" / "quickstart.svg")
    shown = ["".join(text.itertext()).split() for text in page.iter(f"{SVG}text")]
    (output,) = [part for part in (ROOT / "README.md").read_text().split("```") if part.startswith("\n data set")]
    assert ["$", "knot-runner"] in shown
    assert all(line.split() in shown for line in output.splitlines() if line)
