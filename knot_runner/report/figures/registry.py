"""The registry of figures, :data:`FIGURES`.

A figure is a function that reads run folders, writes image files, and returns the drawn numbers as lines of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.strict import build
from knot_runner.report.figures.plot import PlotRequest, plotted
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

#: Name -> figure. ``style.figure_of`` creates figures: functions of (jobs, path, notes=(), command="") that return
#: lines. A plug-in adds a figure by ``FIGURES["name"] = function``. ``report.kind`` and ``report.figures`` of a preset
#: then accept the name.
FIGURES: Table[Callable[..., list[str]]] = Table("FIGURES", {
    "plot": plotted(PlotRequest()),
}, lambda where, figure: checked(where, figure, lambda lines, *_: unlike(lines, list, "a list of lines")),
    papers="report")  # fmt: skip


def figures_of(spec: Config) -> dict[str, Callable[..., list[str]]]:
    """Return a dict from name to figure function, with all figures of a preset.

    The figures are listed under the key ``figures`` of ``spec``. Each entry is the name of a figure, or a mapping with
    the fields of a :class:`PlotRequest`. If ``figures`` is missing, the key ``kind`` may name a single figure.

    Args:
        spec: The preset's section ``report:``.

    Raises:
        UserError: A name or field is unknown.
    """
    kind = spec.get("kind", "methods")
    figures = spec.get("figures", ())
    if kind in FIGURES and not figures:
        figures = (kind,)
    by_name: dict[str, Callable[..., list[str]]] = {}
    for i, figure in enumerate(figures):
        if isinstance(figure, Mapping):
            request = build(PlotRequest, dict(figure), f"report.figures[{i}]")
            by_name[request.name] = plotted(request)
        elif figure in FIGURES:
            by_name[figure] = FIGURES[figure]
        else:
            raise UserError(f"unknown figure {figure!r}{nearest(str(figure), FIGURES)}", "report.figures")
    return by_name
