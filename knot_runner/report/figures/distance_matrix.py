"""Heat maps of distances between data sets or clients (FedWaD Fig. 6 and 15), and how they compare with exact ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.figure_style import figure_of, panels, save, seed_list
from knot_runner.report.matrix_runs import (
    RunsBySetting,
    by_setting,
    exact_ones,
    matrix_agreement,
    matrix_of,
    samples_of,
)
from knot_runner.report.records.matrix import kinds_of_pairs
from knot_runner.report.run_folders import Run
from knot_runner.report.series import write_csv
from knot_runner.report.text import plain

#: Data sets whose names and distances are written into the map; of more, only planted groups are named.
_MAX_NAMED = 8
#: FedWaD's public code makes affinities (5000 - D) / 5000 of client distances D.
PUBLISHED_SCALE = 5000
MATRIX_NOTE = "Squared distances, each map with its own colours; the diagonal, which is 0, is left blank."


@figure_of(one_task=False)
def matrix_figure(runs: Sequence[Run], path: Path, notes: Sequence[str], command: str) -> list[str]:
    """A heat map per setting: of data sets, the mean over seeds; of clients, sorted by planted group, the first seed.

    Returns, for each setting, the range of its distances, and where exact distances of the same samples are there: the
    rank correlation (Spearman), the order relations kept, and the median ratio. All distances go into a CSV beside the
    PNG. Raises :class:`UserError` for runs without distances.
    """
    found = by_setting(runs)
    made, grid = panels(len(found), 3.9, 3.7)
    for axes, (title, seeds) in zip(grid, found.items(), strict=True):
        _draw_map(made, axes, list(seeds.values()))
        axes.set_title(re.sub(", (?=FedWaD|exact$)", "\n", plain(title)), fontsize=10)  # settings above, if any
    which = f"means over seeds {seed_list(runs)}" if _fixed(runs[0]) else f"of seed {min(run.job.seed for run in runs)}"
    save(made, path, "Distances between data sets", [f"{MATRIX_NOTE} Drawn: {which}.", *notes])
    write_csv(path, ("setting", "seed", "first", "second", "distance"), _csv_rows(found), digits=8)
    exact = exact_ones(runs)
    return [line for title, members in found.items() for line in _lines(title, list(members.values()), exact)]


def _csv_rows(found: RunsBySetting) -> Iterator[tuple[Any, ...]]:
    for title, seeds in found.items():
        for seed, run in seeds.items():
            names, matrix = run.result["names"], matrix_of(run)
            for i, j in zip(*np.triu_indices(len(names), 1), strict=True):
                yield title, seed, names[i], names[j], matrix[i, j]


def _lines(title: str, runs: list[Run], exact: dict[str, Run]) -> list[str]:
    """Range, and comparison with the exact distances of the same samples, pooled or averaged over seeds."""
    kinds = [kinds_of_pairs(matrix_of(run), run.result.get("groups")) for run in runs]
    parts = [f"{kind} {_range([of[kind] for of in kinds if kind in of])}" for kind in kinds[0]]
    lines = [f"{title}: {'; '.join(parts)}{_scale(runs)}"]
    there = [run for run in runs if run.result["solver"] != "exact" and samples_of(run) in exact]
    compared = [matrix_agreement(matrix_of(run), matrix_of(exact[samples_of(run)])) for run in there]
    found = [one for one in compared if one is not None]
    if not found:
        return lines
    rank = [one.spearman for one in found]
    over = f" ({min(rank):.3f} to {max(rank):.3f} over {len(rank)} seeds)" if len(rank) > 1 else ""
    kept = np.mean([one.kept / one.relations for one in found])
    larger = np.mean([one.inflation for one in found])
    return [
        *lines,
        f"{title}: with the exact distances, Spearman {np.mean(rank):.3f}{over}; {kept:.0%} of "
        f"{found[0].relations:,} order relations kept; {larger:.3g} times as large (median)",
    ]


def _range(values: list[np.ndarray]) -> str:
    pooled = np.concatenate(values)
    return f"{pooled.min():,.1f} to {pooled.max():,.1f}, median {np.median(pooled):,.1f}"


def _scale(runs: list[Run]) -> str:
    """Whether the published affinity of clients could be computed; it has no meaning for other data sets."""
    if _fixed(runs[0]):
        return ""
    fits = max(matrix_of(run).max() for run in runs) <= PUBLISHED_SCALE
    return f"; {'below' if fits else 'NOT below'} the published affinity's constant {PUBLISHED_SCALE:,}"


def _fixed(run: Run) -> bool:
    """Whether the data sets are the same ones under every seed, unlike clients."""
    return (run.job.config.get("task") or {}).get("kind") == "image_sets"


def _draw_map(made: Any, axes: Any, runs: list[Run]) -> None:
    shown = runs if _fixed(runs[0]) else runs[:1]
    matrix, result = np.mean([matrix_of(run) for run in shown], axis=0), shown[0].result
    groups = result.get("groups")
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        matrix = matrix[np.ix_(order, order)]
    image = axes.imshow(np.ma.masked_array(matrix, np.eye(len(matrix), dtype=bool)), cmap="cividis")
    made.colorbar(image, ax=axes, shrink=0.75)
    axes.spines[:].set_visible(False)
    if len(matrix) <= _MAX_NAMED:
        _write_numbers(axes, image, result["names"])
    elif groups is None:
        axes.set(xlabel="client", ylabel="client")
        axes.locator_params(integer=True)
    else:
        _mark_groups(axes, sorted(groups))


def _write_numbers(axes: Any, image: Any, names: list[str]) -> None:
    texts = [plain(name) for name in names]
    axes.set_xticks(range(len(names)), texts, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), texts)
    axes.tick_params(length=0)
    for (i, j), value in np.ndenumerate(image.get_array()):
        if i != j:
            colour = "white" if image.norm(value) < 0.6 else "black"
            axes.text(j, i, f"{value:,.0f}", ha="center", va="center", fontsize=9, color=colour)


def _mark_groups(axes: Any, groups: list[int]) -> None:
    """Lines between planted groups, which stand side by side, and their numbers."""
    ends = np.flatnonzero(np.diff(groups)) + 1
    for end in ends:
        axes.axvline(end - 0.5, color="white", lw=1)
        axes.axhline(end - 0.5, color="white", lw=1)
    edges = np.array([0, *ends, len(groups)])
    middles, label = (edges[:-1] + edges[1:] - 1) / 2, "clients by planted group"
    axes.set_xticks(middles, sorted(set(groups)))
    axes.set_yticks(middles, sorted(set(groups)))
    axes.set(xlabel=label, ylabel=label)
    axes.tick_params(length=0)
