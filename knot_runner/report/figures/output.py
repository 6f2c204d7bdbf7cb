"""Output of figures: file formats and print width. A figure for print has neither title nor notes."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Format -> metadata of matplotlib that would differ between two runs. None omits an entry.
FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
#: Name of a width -> the width of a journal's column in inches.
WIDTHS = {"single": 3.35, "double": 7.0}
MM_PER_INCH = 25.4
#: Smallest and largest print width. Narrower figures have no room for axis labels; wider figures exceed every page.
NARROWEST_MM = 60
WIDEST_MM = 420
#: Font sizes of title and notes on a screen, and the average width of a letter, in points.
TITLE_SIZE = 13
TITLE_LETTER = 8.0
NOTE_SIZE = 9
NOTE_LETTER = 4.9
#: Height of a line of notes in inches, and the number of lines that fit without enlarging the figure.
NOTE_LINE = 0.15
NOTE_LINES = 2


@dataclass(frozen=True)
class FigureOutput:
    """File formats and width of figures.

    Attributes:
        formats: Keys of :data:`FORMATS`.
        width: The print width in inches. If None, the figure is for a screen, and has a title and notes.
    """

    formats: tuple[str, ...] = ("png",)
    width: float | None = None


#: One PNG file in the figure's screen size.
ON_SCREEN = FigureOutput()
_OUTPUT: ContextVar[FigureOutput] = ContextVar("figure_output", default=ON_SCREEN)


@contextlib.contextmanager
def figure_output(output: FigureOutput) -> Iterator[None]:
    """Return a context in which figures are saved according to ``output``."""
    token = _OUTPUT.set(output)
    try:
        yield
    finally:
        _OUTPUT.reset(token)


def current_output() -> FigureOutput:
    """Return the argument of the innermost :func:`figure_output` context; :data:`ON_SCREEN` if there is no context."""
    return _OUTPUT.get()


def parse_formats(text: str) -> tuple[str, ...]:
    """Return the formats in ``text``, such as ``png,pdf``, without duplicates.

    Raises:
        UserError: A format is unknown.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise UserError(f"unknown format {name!r}{nearest(name, FORMATS)}", f"--formats={text}")
    return names


def parse_width(text: str) -> float:
    """Return the print width in inches. ``text`` is ``single``, ``double`` or a number of millimeters, such as ``85``.

    Raises:
        UserError: ``text`` is not a width, or the width is too small or too large.
    """
    if text in WIDTHS:
        return WIDTHS[text]
    try:
        millimeters = float(text)
    except ValueError:
        raise UserError("expected 'single', 'double' or a width in mm, such as 85", f"--width={text}") from None
    if not NARROWEST_MM <= millimeters <= WIDEST_MM:
        raise UserError(f"expected {NARROWEST_MM} to {WIDEST_MM} millimeters", f"--width={text}")
    return millimeters / MM_PER_INCH


def write_figure(figure: Figure, title: str, notes: Sequence[str], path: Path) -> None:
    """Write a figure as one file per format of :func:`current_output`. Each file is written atomically.

    Args:
        figure: The figure.
        title: The title above the panels, left out in print.
        notes: The lines below the panels, left out in print.
        path: The path of the files. Its suffix is replaced by the format of each file.
    """
    output = current_output()
    if not output.width:
        _add_caption(figure, title, notes)
    _wrap_labels(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # each further drawing would move the panels a little
    for form in output.formats:
        image = io.BytesIO()
        figure.savefig(image, format=form, metadata=FORMATS[form])
        write_atomic(path.with_suffix(f".{form}"), image.getvalue())


def _add_caption(figure: Figure, title: str, notes: Sequence[str]) -> None:
    """Add the title above the panels, left of a legend in the upper corner, and the notes below the panels.

    Long notes enlarge the figure.
    """
    width = 72 * figure.get_figwidth()
    room = width
    for legend in figure.legends:
        room -= 72 * legend.get_window_extent().width / figure.dpi
    wrapped = textwrap.wrap(title, int(room / TITLE_LETTER))
    figure.suptitle("\n".join(wrapped), fontsize=TITLE_SIZE, x=0.01, ha="left")
    lines = []
    for note in notes:
        lines += textwrap.wrap(note, int(width / NOTE_LETTER))
    if lines:
        figure.set_figheight(figure.get_figheight() + NOTE_LINE * max(0, len(lines) - NOTE_LINES))
        figure.supxlabel("\n".join(lines), fontsize=NOTE_SIZE, color="#555555", x=0.01, ha="left")


def _wrap_labels(figure: Figure) -> None:
    """Wrap titles and labels that are longer than their axes."""
    figure.draw_without_rendering()  # axes have their places, and texts their sizes, once drawn
    for axes in figure.axes:
        wide, high = axes.get_window_extent().size
        for text, room in ((axes.title, wide), (axes.xaxis.label, wide), (axes.yaxis.label, high)):
            length = max(text.get_window_extent().size)
            if length > room:
                longest = max(map(len, text.get_text().splitlines()))
                text.set_text("\n".join(textwrap.wrap(text.get_text(), max(int(longest * room / length), 8))))
