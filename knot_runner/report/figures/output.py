"""Output of figures: the file formats, the width in print, and whether title and notes are drawn."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic
from knot_runner.util.messages import LOGGER

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

#: Format -> metadata of matplotlib that would differ between two runs; None omits them.
FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
#: Inches of a journal's columns.
WIDTHS = {"single": 3.35, "double": 7.0}
MM_PER_INCH = 25.4
#: Inches of text on a page of letter paper.
PAGE_HEIGHT = 9.0
#: Limits of the width: narrower, no axis with labels fits; wider than any page.
NARROWEST_MM, WIDEST_MM = 60, 420
#: Minimum panel width (inches); narrower panels are stacked instead.
NARROWEST_PANEL = 2.2
#: Minimum panel height (inches), unless they are lower on a screen.
LOWEST_PANEL = 1.6
#: Text stays text (PDF: TrueType, SVG: <text>), and identifiers within an SVG are the same each time.
VECTOR_STYLE = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "knot-runner"}
#: Font settings of a figure with a given width.
SMALL_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "legend.title_fontsize": 7,
}  # fmt: skip
#: Points of the type on a screen (``style.STYLE``), and of the smallest in print.
SCREEN_TYPE, SMALLEST_TYPE = 11, 6.0
TITLE_SIZE, NOTE_SIZE, LARGEST_MARKER = 9, 6.5, 6
NOTE_COLOUR = "#555555"
#: Of notes on a screen: inches of a line (9 points), and lines for which the panels of a figure make room.
NOTE_LINE, NOTE_LINES = 0.15, 2
#: Vertical gap between elements, in inches.
LINE_GAP = 0.06


@dataclass(frozen=True)
class FigureOutput:
    """``formats``: keys of :data:`FORMATS`; ``width``: inches, or None for the figure's own size on a screen;
    ``captioned``: whether the title above and the notes below are drawn."""

    formats: tuple[str, ...] = ("png",)
    width: float | None = None
    captioned: bool = True


_OUTPUT: ContextVar[FigureOutput | None] = ContextVar("figure_output", default=None)


@contextlib.contextmanager
def figure_output(output: FigureOutput) -> Iterator[None]:
    """Context in which figures are saved according to ``output``."""
    token = _OUTPUT.set(output)
    try:
        yield
    finally:
        _OUTPUT.reset(token)


def current_output() -> FigureOutput:
    """The output of the innermost :func:`figure_output`; by default one PNG in the figure's own size."""
    return _OUTPUT.get() or FigureOutput()


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse ``png,pdf`` to (png, pdf), without duplicates. Raises :class:`UserError`."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in FORMATS:
            raise UserError(f"--formats={text}: there is no {name!r}{nearest(name, FORMATS)}")
    if not names:
        raise UserError(f"--formats={text}: needs one or more of {', '.join(FORMATS)}, as in --formats=pdf,svg")
    return names


def parse_width(text: str) -> float:
    """Parse ``single``, ``double`` or millimetres (``85`` or ``85mm``) to inches. Raises :class:`UserError`."""
    if text in WIDTHS:
        return WIDTHS[text]
    try:
        millimetres = float(text.removesuffix("mm"))
    except ValueError:
        raise UserError(f"--width={text}: is single, double or millimetres, as in --width=85") from None
    if not NARROWEST_MM <= millimetres <= WIDEST_MM:
        raise UserError(f"--width={text}: is not from {NARROWEST_MM} to {WIDEST_MM} millimetres")
    return millimetres / MM_PER_INCH


def fitted_panels(columns: int, width: float, height: float, total: float, fewest: int = 1) -> tuple[int, float, float]:
    """(columns, width, height) of panels in a figure ``total`` inches wide, with the aspect ratio ``width`` x
    ``height``; fewer per row, but at least ``fewest``, if they would be narrower than :data:`NARROWEST_PANEL`."""
    drawn = max(fewest, min(columns, int(total / NARROWEST_PANEL)))
    scaled = height * total / drawn / width
    return drawn, total / drawn, max(scaled, min(height, LOWEST_PANEL))


def type_size(points: float) -> float:
    """Points of type that has ``points`` on a screen: in proportion, but at least 6, where the width is given."""
    if current_output().width is None:
        return points
    return max(SMALLEST_TYPE, points * SMALL_STYLE["font.size"] / SCREEN_TYPE)


def image_bytes(figure: Figure, form: str) -> bytes:
    """``figure`` in a format of :data:`FORMATS`; the same figure gives the same bytes at any time."""
    image = io.BytesIO()
    figure.savefig(image, format=form, metadata=FORMATS[form])
    return image.getvalue()


def write_figure(figure: Figure, title: str, notes: Sequence[str], path: Path) -> None:
    """Write ``figure`` to ``path`` in the formats of :func:`current_output`, which replace its suffix, each atomically;
    with title above and notes below the panels, unless captions are off."""
    output = current_output()
    if not output.captioned:
        title, notes = "", []
    if output.width:
        arrange(figure, title, notes)
        high = figure.get_figheight()
        if high > PAGE_HEIGHT:
            message = "%s: %.0f inches high, more than a page; a larger --width has more panels in a row"
            LOGGER.warning(message, path.stem, high)
    else:
        _caption(figure, title, notes)
    for form in output.formats:
        write_atomic(path.with_suffix(f".{form}"), image_bytes(figure, form))


def _caption(figure: Figure, title: str, notes: Sequence[str]) -> None:
    """Title above and notes below the panels, which make room for both; for long notes the figure grows."""
    letters = int(figure.get_figwidth() * 72 / 4.9)  # of 9 points, about 4.9 wide on average
    if title:  # left of a legend that stands in the upper corner
        made = figure.suptitle("", fontsize=13, x=0.01, ha="left")
        taken = max((legend.get_window_extent().width for legend in figure.legends), default=0.0)
        _wrap_into(made, [title], int(letters * 0.65), 0.98 * figure.bbox.width - taken)
    lines = [line for note in notes for line in textwrap.wrap(note, letters)]
    figure.set_figheight(figure.get_figheight() + NOTE_LINE * max(0, len(lines) - NOTE_LINES))
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=9, color=NOTE_COLOUR, x=0.01, ha="left")


def arrange(figure: Figure, title: str, notes: Sequence[str]) -> None:
    """Title above the panels, and below them legends and notes, for a figure whose width is given.

    The figure grows by their height; panels keep theirs as far as a page holds it all. Legends that stood beside
    the panels come below them.
    """
    width, height = figure.get_size_inches()
    above = [_text(figure, [title], TITLE_SIZE, "black")] if title else []
    below = [_text(figure, notes, NOTE_SIZE, NOTE_COLOUR)] if notes else []
    below += [_below(figure, legend) for legend in _legends_beside(figure)]
    tops, bottoms = [_inches_high(figure, one) for one in above], [_inches_high(figure, one) for one in below]
    room_above, room_below = sum(tops) + LINE_GAP * len(tops), sum(bottoms) + LINE_GAP * len(bottoms)
    height = _on_a_page(figure, height, PAGE_HEIGHT - room_above - room_below)
    whole = height + room_above + room_below
    figure.set_size_inches(width, whole)
    for one in above:
        one.set_position((LINE_GAP / width, 1 - LINE_GAP / whole))
    at = LINE_GAP / 2
    for one, high in zip(below, bottoms, strict=True):
        if hasattr(one, "set_bbox_to_anchor"):
            one.set_bbox_to_anchor((0.5, at / whole), transform=figure.transFigure)
        else:
            one.set_position((LINE_GAP / width, at / whole))
            one.set_verticalalignment("bottom")
        at += high + LINE_GAP
    engine = figure.get_layout_engine()
    engine.set(rect=(0, room_below / whole, 1, height / whole), w_pad=0.04, h_pad=0.04)
    _wrap_labels(figure)


def _on_a_page(figure: Figure, height: float, room: float) -> float:
    """``height`` of all panels in inches, less where they have ``room`` for less, but none lower than
    :data:`LOWEST_PANEL`."""
    specs = [axes.get_subplotspec() for axes in figure.axes]
    rows = max((spec.get_gridspec().nrows for spec in specs if spec is not None), default=1)
    return min(height, max(room, rows * LOWEST_PANEL))


def _text(figure: Figure, lines: Sequence[str], size: float, colour: str) -> Any:
    """Lines of text over the whole width, taken out of the layout."""
    made = figure.text(0, 1, "", fontsize=size, color=colour, ha="left", va="top")
    made.set_in_layout(False)
    letters = int(figure.get_figwidth() * 72 / (0.5 * size))
    _wrap_into(made, lines, letters, figure.bbox.width - 2 * LINE_GAP * figure.dpi)
    return made


def _wrap_into(made: Any, lines: Sequence[str], letters: int, room: float) -> None:
    """Give the text ``made`` these lines, wrapped at ``letters`` or less so that it is ``room`` pixels wide at most."""
    for fewer in range(letters, 8, -2):
        made.set_text("\n".join(part for line in lines for part in textwrap.wrap(line, fewer)))
        if made.get_window_extent().width <= room:
            break


def _legends_beside(figure: Figure) -> list[Legend]:
    """The figure's own legends, and those of axes that are anchored outside of their axes."""
    of_axes = [axes.get_legend() for axes in figure.axes]
    outside = [one for one in of_axes if one is not None and one._bbox_to_anchor is not None]
    return [*figure.legends, *outside]


def _below(figure: Figure, legend: Legend) -> Legend:
    """``legend`` again, below the panels, in as many columns as fit the width; the old one is removed."""
    texts = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    letters = int((figure.get_figwidth() - 0.6) * 72 / 4)  # of 7 points, about 4 wide; 0.6 in for the handle
    names = ["\n".join(textwrap.wrap(text, letters)) for text in texts]
    handles, title = legend.legend_handles, legend.get_title().get_text()
    for handle in handles:
        if hasattr(handle, "set_markersize"):  # a large marker would reach into the axis above
            handle.set_markersize(min(handle.get_markersize(), LARGEST_MARKER))
    legend.remove()
    for rows in range(1, len(names) + 1):
        look = {"loc": "lower center", "ncols": -(-len(names) // rows), "columnspacing": 1.2, "borderpad": 0.1}
        made = figure.legend(handles, names, title=title or None, **look)
        made.set_in_layout(False)
        if made.get_window_extent().width <= figure.bbox.width or rows == len(names):
            break
        made.remove()
    return made


def _wrap_labels(figure: Figure) -> None:
    """Titles and labels of axes that are longer than their axes, over several lines."""
    figure.draw_without_rendering()  # axes have their places, and texts their sizes, once drawn
    for axes in figure.axes:
        wide, high = axes.get_window_extent().size
        for text, room in ((axes.title, wide), (axes.xaxis.label, wide), (axes.yaxis.label, high)):
            box = text.get_window_extent()
            length = box.height if text is axes.yaxis.label else box.width
            if length > room > 0:
                longest = max(map(len, text.get_text().splitlines()))
                text.set_text("\n".join(textwrap.wrap(text.get_text(), max(int(longest * room / length), 8))))


def _inches_high(figure: Figure, one: Any) -> float:
    return float(one.get_window_extent().height / figure.dpi)
