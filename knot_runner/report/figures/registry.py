"""Every figure by name. Each reads run folders, writes one PNG, and returns the numbers in it as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.strict import build
from knot_runner.report.figures.bias import bias_figure, probe_figure
from knot_runner.report.figures.bound import bound_figure
from knot_runner.report.figures.client_models import id_ood_figure, landscape_figure, transfer_figure
from knot_runner.report.figures.cls_vectors import vector_figure
from knot_runner.report.figures.coreset import coreset_accuracy, coreset_images
from knot_runner.report.figures.data_distances import distance_course, matrix_figure
from knot_runner.report.figures.federated_distance import distance_runtime, moving_measure
from knot_runner.report.figures.plot import PlotRequest, plotted
from knot_runner.report.figures.predictions import confidence, expected_label
from knot_runner.report.figures.temperature_probe import boundary_figure, gradient_figure, softmax_figure
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest

#: Name -> function(jobs, path, notes=(), command="") -> lines, as ``style.figure_of`` makes it. A plug-in adds
#: its own: ``FIGURES["name"] = function``, which ``report.kind`` and ``report.figures`` of a preset then know.
FIGURES: Table[Callable[..., list[str]]] = Table("FIGURES", {
    "expected_label": expected_label,
    "confidence": confidence,
    "tsne": vector_figure,
    "support": vector_figure,
    "epsilon": vector_figure,
    "bias": bias_figure,
    "probe": probe_figure,
    "plot": plotted(PlotRequest()),
    "gradients": gradient_figure,
    "boundary": boundary_figure,
    "softmax": softmax_figure,
    "moving_measure": moving_measure,
    "distance_runtime": distance_runtime,
    "distance_matrix": matrix_figure,
    "distance_course": distance_course,
    "coreset_images": coreset_images,
    "coreset_accuracy": coreset_accuracy,
    "bound": bound_figure,
    "transfer_matrix": transfer_figure,
    "id_ood": id_ood_figure,
    "landscape": landscape_figure,
}, lambda where, figure: checked(where, figure, lambda lines, *_: unlike(lines, list, "a list of lines")))  # fmt: skip


def figures_of(spec: Config) -> dict[str, Callable[..., list[str]]]:
    """Name -> figure of a preset whose ``report:`` is ``spec``: its ``figures``, each a name or the fields of a
    :class:`PlotRequest`, or its kind.

    Raises :class:`UserError` for an unknown name or field.
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
            raise UserError(f"there is no figure {one!r}{nearest(str(one), FIGURES)}", "report.figures")
    return found
