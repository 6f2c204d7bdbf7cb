"""Every figure by name. Each reads run folders, writes one PNG, and returns the numbers in it as lines of text.

For a page they are drawn in a temporary folder and embedded as PNG.
"""

from __future__ import annotations

import base64
import inspect
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.report.figures.bias import bias_figure, probe_figure
from knot_runner.report.figures.bound import bound_figure
from knot_runner.report.figures.client_models import id_ood_figure, landscape_figure, transfer_figure
from knot_runner.report.figures.cls_vectors import vector_figure
from knot_runner.report.figures.coreset import coreset_accuracy, coreset_images
from knot_runner.report.figures.data_distances import distance_course, matrix_figure
from knot_runner.report.figures.federated_distance import distance_runtime, moving_measure
from knot_runner.report.figures.predictions import confidence, expected_label
from knot_runner.report.figures.rounds import accuracy_by_round, aggregation, curves
from knot_runner.report.figures.style import DPI
from knot_runner.report.figures.temperature_probe import boundary_figure, gradient_figure, softmax_figure
from knot_runner.report.run_folders import Job
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
    "accuracy_by_round": accuracy_by_round,
    "curves": curves,
    "aggregation": aggregation,
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


#: Kind of table -> figures that the same runs can be drawn as; ``figures:`` in a preset's ``report:`` replaces them.
COMPANIONS = {"temperatures": ("curves",), "trace": ("curves",), "methods": ("expected_label", "bias")}


@dataclass(frozen=True)
class FigureView:
    """A figure: its description, the image as a ``data:`` address and its size (CSS pixels), the numbers in it as
    lines, and as CSV if it writes one. ``problem``: if it could not be drawn, the reason."""

    name: str
    about: str
    image: str = ""
    width: int = 0
    height: int = 0
    lines: tuple[str, ...] = ()
    csv: str = ""
    problem: str = ""

    @property
    def alt(self) -> str:
        """Alternative text of the image."""
        return f"{self.about} The numbers in it are below."


def figure_names(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the figures for a preset whose ``report:`` is ``spec``.

    Raises :class:`UserError` for an unknown name in ``figures:``.
    """
    kind = spec.get("kind", "methods")
    if kind in FIGURES:
        return (kind,)
    names = spec.get("figures", COMPANIONS.get(kind, ()))
    if not isinstance(names, list | tuple):
        raise UserError("report.figures: is not a list of figures; [curves] would be one")
    for name in names:
        if name not in FIGURES:
            raise UserError(f"report.figures: there is no figure {name!r}{nearest(str(name), FIGURES)}")
    return tuple(names)


def draw(kind: str, jobs: Sequence[Job], notes: Sequence[str], command: str) -> FigureView:
    """Draw figure ``kind`` of ``jobs``; on failure the view has the reason."""
    about = describe_figure(kind)
    with tempfile.TemporaryDirectory(prefix="knot-figure-") as folder:
        path = Path(folder) / f"{kind}.png"
        try:
            lines = FIGURES[kind](jobs, path, notes=notes, command=command)
        except UserError as problem:
            return FigureView(kind, about, problem=str(problem))
        image, numbers = path.read_bytes(), path.with_suffix(".csv")
        kept = csv_address(numbers.read_text(encoding="utf-8")) if numbers.is_file() else ""
    width, height = _size(image)
    data = "data:image/png;base64," + base64.b64encode(image).decode()
    return FigureView(kind, about, data, width, height, tuple(lines), kept)


def describe_figure(kind: str) -> str:
    """Description of figure ``kind``: the first paragraph of its function's docstring."""
    text = inspect.cleandoc(FIGURES[kind].__doc__ or kind).split("\n\n")[0]
    return " ".join(text.split()).partition("; returns")[0].partition(" Returns")[0].rstrip(".").replace("`", "") + "."


def csv_address(text: str) -> str:
    """A ``data:`` address that a browser saves as a file."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode()).decode()


def _size(image: bytes) -> tuple[int, int]:
    """Width and height in CSS pixels (96 an inch), from a PNG's header."""
    across, down = struct.unpack(">II", image[16:24])
    return round(across * 96 / DPI), round(down * 96 / DPI)
