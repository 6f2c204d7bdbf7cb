"""Every figure by name. Each reads run folders, writes one PNG, and returns the numbers in it as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.report.figures.rounds import accuracy_by_round
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

#: Name -> function(jobs, path, notes=(), command="") -> lines, as ``style.figure_of`` makes it. A plug-in adds
#: its own: ``FIGURES["name"] = function``, which ``report.kind`` and ``report.figures`` of a preset then know.
FIGURES: Table[Callable[..., list[str]]] = Table("FIGURES", {
    "accuracy_by_round": accuracy_by_round,
}, lambda where, figure: checked(where, figure, lambda lines, *_: unlike(lines, list, "a list of lines")),
    papers="report")  # fmt: skip


def figure_names(spec: Config) -> tuple[str, ...]:
    """Names of the figures for a preset whose ``report:`` is ``spec``.

    Raises :class:`UserError` for an unknown name in ``figures:``.
    """
    kind = spec.get("kind", "methods")
    if kind in FIGURES:
        return (kind,)
    names = spec.get("figures", ())
    for name in names:
        if name not in FIGURES:
            raise UserError(f"there is no figure {name!r}{nearest(str(name), FIGURES)}", "report.figures")
    return tuple(names)
