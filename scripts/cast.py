"""README's terminal cast: a real session of a command, recorded in a terminal of 80 columns, as an animated SVG.

    python scripts/cast.py record session.cast knot-runner
    python scripts/cast.py draw session.cast scripts/pictures/quickstart.svg

The recording (asciicast v2) has what was printed, and when. It is drawn evenly faster, in ``SHOWN`` seconds, which the
line below the screen says. The animation is SMIL, which browsers play in a picture; what does not shows the end.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS, ROWS = 80, 40
#: Seconds that the session takes in the picture, between two of its frames, and that its end stands.
SHOWN, FRAME, HELD = 20.0, 0.25, 8.0
LARGEST = 100_000  # bytes
#: Pixels of a character and of a line, and around the screen.
WIDE, HIGH, MARGIN = 8, 18, 14
PAPER, INK = "#1e2127", "#d7dae0"
#: The terminal's own colours, by their SGR code; the others are those of xterm.
NAMED = {"31": "#e06c75", "32": "#98c379", "33": "#d7ba7d", "34": "#61afef", "35": "#c678dd", "36": "#56b6c2"}
DIM = "#8a919e"


# ---------------------------------------------------------------------------------------------------------- recording


def record(path: Path, command: list[str]) -> int:
    """Run ``command`` in a terminal of its own and write what it prints, when, to ``path``; its exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder, began = codecs.getincrementaldecoder("utf-8")("replace"), time.monotonic()
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "command": shlex.join(command)}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head) + "\n")
        while data := _read(terminal):
            text = decoder.decode(data)
            sys.stdout.write(text)
            sys.stdout.flush()
            file.write(json.dumps([round(time.monotonic() - began, 3), "o", text]) + "\n")
        load = round(os.getloadavg()[1])  # of five minutes: how many processes wanted a core
        file.write(json.dumps([round(time.monotonic() - began, 3), "m", f"{os.cpu_count()} {load}"]) + "\n")
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end is closed
        return b""


# ------------------------------------------------------------------------------------------------------- the terminal


@dataclass
class Screen:
    """A terminal as far as rich writes to it: text, colours, the cursor to the left and up, lines erased."""

    lines: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    colour: str = INK
    begun: str = ""

    def write(self, text: str) -> None:
        """What was printed. Raises ``SystemExit`` for a sequence that this terminal does not know."""
        text = self.begun + text
        self.begun = re.search(r"(\x1b(\[[0-9;?]*)?)?$", text).group()  # a sequence whose end comes with the next
        text = text.removesuffix(self.begun)
        for code, kind, plain in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", text):
            if plain:
                self._put(plain)
            elif kind == "m":
                self.colour = coloured(code, self.colour)
            elif kind == "A":
                self.row = max(self.row - int(code or 1), 0)
            elif kind == "K" and code == "2":
                self.lines[self.row] = []
            elif kind not in "hl":  # the cursor is shown or hidden
                raise SystemExit(f"scripts/cast.py: the session has ESC[{code}{kind}, which is not drawn")

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
            return
        if character == "\n" or self.column >= COLUMNS:
            self.row, self.column = self.row + 1, 0 if character != "\n" else self.column
            self.lines += [[]] * (self.row + 1 - len(self.lines))
        if character == "\n":
            return
        line = list(self.lines[self.row])
        line += [(" ", INK)] * (self.column + 1 - len(line))
        line[self.column] = character, self.colour
        self.lines[self.row], self.column = line, self.column + 1

    def shown(self) -> list[str]:
        """Every line as an SVG text, "" where it is empty."""
        return [drawn_line(line, at) for at, line in enumerate(self.lines)]


def coloured(code: str, before: str) -> str:
    """The colour after a sequence of SGR ``code``."""
    if found := re.fullmatch(r"38;5;(\d+)", code):
        return xterm(int(found.group(1)))
    if code in ("", "0", "39"):
        return INK
    return NAMED.get(code.removeprefix("1;"), DIM if code == "2" else before)


def xterm(number: int) -> str:
    """Of xterm's 256 colours one from 16 on: a cube of six by six by six, and greys."""
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    return "#" + "".join(f"{levels[level]:02x}" for level in (red, *divmod(rest, 6)))


# ------------------------------------------------------------------------------------------------------------ drawing


def drawn_line(line: list[tuple[str, str]], row: int) -> str:
    """The SVG text of a line of (character, colour)."""
    text = "".join(character for character, _ in line).rstrip()
    if not text:
        return ""
    pieces = []
    for colour, cells in groupby(line[: len(text)], key=lambda cell: cell[1]):
        piece = escape("".join(character for character, _ in cells))
        pieces.append(piece if colour == INK or not piece.strip() else f'<tspan fill="{colour}">{piece}</tspan>')
    y = MARGIN + (row + 1) * HIGH - 5
    return f'<text x="{MARGIN}" y="{y}" textLength="{len(text) * WIDE}">{"".join(pieces)}</text>'


def frames(session: list[tuple[float, str]], prompt: str) -> Iterator[tuple[float, list[str]]]:
    """(Second of the picture, lines): the screen before the session, every ``FRAME`` seconds, and at its end."""
    screen, scale = Screen(), SHOWN / session[-1][0]
    screen.write(prompt)
    yield 0.0, screen.shown()
    last = 0.0
    for at, text in session:
        if at * scale >= last + FRAME:
            yield (last := at * scale), screen.shown()
        screen.write(text)
    yield SHOWN, screen.shown()


def intervals(found: list[tuple[float, list[str]]]) -> dict[tuple[float, float | None], list[str]]:
    """(First second, second after the last; None = the end) -> lines that stand on the screen for that time."""
    standing: dict[str, float] = {}
    known: dict[tuple[float, float | None], list[str]] = {}
    for at, lines in [*found, (None, [])]:
        now = {line for line in lines if line}
        for line in [line for line in standing if line not in now]:
            known.setdefault((standing.pop(line), at), []).append(line)
        standing |= {line: at for line in lines if line and line not in standing}
    return known


def draw(recording: Path, picture: Path) -> int:
    """The SVG of a recording; 1 where it is larger than ``LARGEST``."""
    head, *rows = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    session = [(at, text) for at, kind, text in rows if kind == "o"]
    cores, load = map(int, rows[-1][2].split())
    found = list(frames(session, f"$ {head['command']}\r\n"))
    high = (max(len(lines) for _, lines in found) + 2) * HIGH + 2 * MARGIN
    groups = [timed(lines, *times) for times, lines in intervals(found).items()]
    shared = f" that {load} processes shared" if load > cores + 1 else ""
    note = f"{session[-1][0]:.0f} seconds on {cores} cores{shared}, shown in {SHOWN:.0f}"
    picture.write_text(page(groups, note, 2 * MARGIN + COLUMNS * WIDE, high), encoding="utf-8")
    size = picture.stat().st_size
    print(f"{picture}: {len(found)} frames, {size / 1000:.0f} kB")
    return 0 if size <= LARGEST else 1


def timed(lines: list[str], first: float, end: float | None) -> str:
    """Lines that are seen for some seconds of each turn; those of the end also where nothing moves."""
    if end is None:
        times = f'to="hidden" begin="turn.begin" dur="{first:.2f}s"' if first else ""
        hidden = ""
    else:
        times = f'to="visible" begin="turn.begin+{first:.2f}s" dur="{end - first:.2f}s"'
        hidden = ' visibility="hidden"'
    seen = f'<set attributeName="visibility" {times}/>' if times else ""
    return f"<g{hidden}>{seen}{''.join(lines)}</g>"


def page(groups: list[str], note: str, wide: int, high: int) -> str:
    """The whole SVG."""
    turn = f'<animate id="turn" attributeName="x" to="0" begin="0s;turn.end" dur="{SHOWN + HELD:.0f}s"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
            "<style>text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}</style>",
            f'<rect x="0" width="{wide}" height="{high}" rx="8" fill="{PAPER}">{turn}</rect>',
            f'<g fill="{INK}">',
            *groups,
            "</g>",
            f'<text x="{wide - MARGIN}" y="{high - MARGIN}" text-anchor="end" fill="{DIM}">{note}</text>',
            "</svg>\n",
        ]
    )


def main(arguments: list[str]) -> int:
    """``record SESSION COMMAND...`` or ``draw SESSION PICTURE``; returns the exit code."""
    what, *rest = arguments or [""]
    if what == "record" and len(rest) >= 2:
        return record(Path(rest[0]), rest[1:])
    if what == "draw" and len(rest) == 2:
        return draw(Path(rest[0]), Path(rest[1]))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
