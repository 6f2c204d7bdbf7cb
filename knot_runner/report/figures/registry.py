"""The table of figures. A figure reads run folders, writes a PNG file, and returns the drawn numbers as text lines."""

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
    """Return a dict from name to figure for a preset whose ``report:`` is ``spec``.

    Each entry of ``figures`` is a name or the fields of a :class:`PlotRequest`. Without ``figures``, the figure with
    the name of the report's kind is used, if one exists.

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
