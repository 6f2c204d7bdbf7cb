"""The table of figures. Each one reads run folders, writes a PNG file, and returns its numbers as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.strict import build
from knot_runner.report.figures.plot import PlotRequest, plotted
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

#: Name -> function(jobs, path, notes=(), command="") -> lines, as ``style.figure_of`` makes it. A plug-in adds
#: its own: ``FIGURES["name"] = function``, which ``report.kind`` and ``report.figures`` of a preset then know.
FIGURES: Table[Callable[..., list[str]]] = Table("FIGURES", {
    "plot": plotted(PlotRequest()),
}, lambda where, figure: checked(where, figure, lambda lines, *_: unlike(lines, list, "a list of lines")),
    papers="report")  # fmt: skip


def figures_of(spec: Config) -> dict[str, Callable[..., list[str]]]:
    """Return name -> figure of a preset whose ``report:`` is ``spec``.

    They are its ``figures``, each a name or the fields of a :class:`PlotRequest`, or its kind.

    Raises:
        UserError: A name or field is unknown.
    """
    kind = spec.get("kind", "methods")
    figures = spec.get("figures", ())
    if kind in FIGURES and not figures:
        figures = (kind,)
    found: dict[str, Callable[..., list[str]]] = {}
    for i, one in enumerate(figures):
        if isinstance(one, Mapping):
            request = build(PlotRequest, dict(one), f"report.figures[{i}]")
            found[request.name] = plotted(request)
        elif one in FIGURES:
            found[one] = FIGURES[one]
        else:
            raise UserError(f"unknown figure {one!r}{nearest(str(one), FIGURES)}", "report.figures")
    return found
