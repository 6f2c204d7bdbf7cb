"""What every figure shares: colours, type, layout of panels, and saving."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report.run_folders import Job, readable
from knot_runner.report.tables.footnotes import embedded, finished, not_counted
from knot_runner.report.text import plain
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, told apart with every kind of colour vision; the yellow, too pale on white, comes last.
PALETTE = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
GREY = "#555555"
DPI = 200
STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "text.parse_math": False,
}


def figure_of(
    function: Callable[..., list[str]], one_task: bool = True, reads: Sequence[str] = ()
) -> Callable[..., list[str]]:
    """Make ``function(runs, path, notes, command)``, which draws finished runs, a figure of ``jobs``.

    It runs under our type and line settings, whatever the user's matplotlibrc says. ``reads``: files of a run that it
    draws, without which a run is left out. Runs that are not there or left out, and generated text, are said under the
    figure and in the lines returned. Raises :class:`UserError` when no run is
    there, naming the ``command`` that makes them, and for runs of several tasks unless ``one_task`` is False.
    """

    @functools.wraps(function)
    def styled(jobs: Sequence[Job], path: Path, notes: Sequence[str] = (), command: str = "") -> list[str]:
        import matplotlib

        tasks = dict.fromkeys(job.task for job in jobs)
        if one_task and len(tasks) > 1:
            raise UserError(f"a figure is of one task; these runs are of {', '.join(tasks)}")
        found = readable(jobs, reads, command)
        runs = finished(found)
        said = [f"{len(runs)} of {len(jobs)} runs are there."] if len(runs) < len(jobs) else []
        said += not_counted(found)
        if embedded(runs):
            said.append(f"{embedded(runs)}.")
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            return [*function(runs, path, [*notes, *said], command), *said]

    return styled


def panels(count: int, width: float, height: float, across: int = 3, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of ``width`` x ``height`` inches, at most ``across`` in a row.

    It is drawn without a screen and is none of matplotlib's current figures.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 2 if count == 4 else min(count, across)
    rows = -(-count // columns)
    made = Figure(figsize=(width * columns, height * rows), dpi=DPI, layout="constrained")
    made.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(made)
    grid = list(made.subplots(rows, columns, squeeze=False, **options).flat)
    for spare in grid[count:]:
        spare.remove()
    return made, grid[:count]


def label_colours(coordinates: Sequence[Sequence[float]]) -> list[Any]:
    """One colour per label: along a scale where labels lie on a line (sentiment), else as unlike as can be."""
    points = np.asarray(coordinates, dtype=float)
    if points.shape[1] != 1:
        return [PALETTE[i % len(PALETTE)] for i in range(len(points))]
    from matplotlib import colormaps

    place = (points[:, 0] - points.min()) / np.ptp(points)
    return [colormaps["viridis"](0.92 * share) for share in place]


def label_text(name: str, gap: str = " ") -> str:
    """A label's name as drawn: ``no_emotion`` is "no emotion", or two lines where ``gap`` is a line break."""
    return plain(name).replace("_", gap)


def save(made: Figure, path: Path, title: str, notes: Sequence[str] = ()) -> None:
    """Write ``made`` to ``path`` as a PNG, whole or not at all: ``title`` above, ``notes`` in small type below."""
    letters = int(made.get_figwidth() * 72 / 4.9)  # of 9 points, about 4.9 wide on average
    made.suptitle("\n".join(textwrap.wrap(plain(title), int(letters * 0.65))), fontsize=13, x=0.01, ha="left")
    lines = [line for note in notes for line in textwrap.wrap(plain(note), letters)]
    if lines:
        made.supxlabel("\n".join(lines), fontsize=9, color=GREY, x=0.01, ha="left")
    image = io.BytesIO()
    made.savefig(image, format="png", metadata={"Software": None})
    write_atomic(path, image.getvalue())
