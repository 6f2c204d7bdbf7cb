"""Optimal plans for scores close to those of a known plan: only changed entries are recomputed.

From one iteration of FedWaD to the next most sinks stay with their source. A plan is optimal exactly if no cycle of
sources gains by each handing some mass on to the next: with ``W_st`` the least that a sink of source s loses by moving
to source t, if the graph of all ``W`` has no cycle of negative length (Klein 1967). Then its shortest paths are heights
that prove the plan optimal; and along a cycle that it has, mass is moved as far as it goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from knot_runner.transport.otdd.small_support import ROUNDING_UNITS, best_plan

#: After so many cycles the network simplex is the faster one.
CYCLES = 40


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """The entries of an optimal plan that are not 0, ascending by source and then by sink: ``sources`` [e], ``sinks``
    [e] and ``units`` [e], whole numbers, of which a sink takes S / gcd(S, n). ``heights`` [S]: small_support.py."""

    sources: np.ndarray
    sinks: np.ndarray
    units: np.ndarray
    heights: np.ndarray

    @cached_property
    def begins(self) -> np.ndarray:
        """Where the entries of each source begin, and where the last one's end [S + 1]."""
        return np.searchsorted(self.sources, np.arange(len(self.heights) + 1))

    def weights(self, sinks: int, dtype: np.dtype) -> csr_array:
        """[S, n], each row of sum 1: what each source's means take of each of ``sinks`` samples."""
        count = len(self.heights)
        shares = (self.units * (math.gcd(count, sinks) / sinks)).astype(dtype)
        return csr_array((shares, self.sinks, self.begins), shape=(count, sinks))


def sparse_plan(plan: np.ndarray, heights: np.ndarray) -> SparsePlan:
    """Of what :func:`best_plan` writes and returns: ``plan`` [S, n], whose columns sum to 1, and ``heights`` [S]."""
    sources, sinks = plan.nonzero()
    unit = len(plan) // math.gcd(*plan.shape)
    return SparsePlan(sources, sinks, np.rint(plan[sources, sinks] * unit).astype(np.int64), heights)


def changed_plan(scores: np.ndarray, known: SparsePlan) -> tuple[SparsePlan, np.ndarray]:
    """The optimal plan of ``scores`` [S, n], from the optimal plan ``known`` of others; the sources [c] whose entries
    differ from those of ``known``."""
    columns = np.ascontiguousarray(scores.T)
    slack = ROUNDING_UNITS * float(np.finfo(scores.dtype).eps * np.abs(scores).max())
    losses = _losses(scores, columns, known)
    heights, units, changed = known.heights.astype(np.float64), np.zeros((0, 0)), set[int]()
    for _ in range(CYCLES):
        cycle = _negative_cycle(losses, heights, slack)
        if not cycle:
            plan = _entries(units, heights) if changed else replace(known, heights=heights)
            return plan, np.array(sorted(changed), dtype=int)
        if not changed:
            units = np.zeros(scores.shape, np.int64)
            units[known.sources, known.sinks] = known.units
        _move(columns, units, cycle)
        for source in cycle:
            own = columns[units[source].nonzero()]
            losses[source] = (own[:, source, None] - own).min(0)
        changed.update(cycle)
    whole = np.empty_like(scores)
    return sparse_plan(whole, best_plan(scores, None, whole)), np.arange(len(scores))


def _losses(scores: np.ndarray, columns: np.ndarray, plan: SparsePlan) -> np.ndarray:
    """The least loss of score [S, S] by moving a sink of each source to each other. ``columns`` [n, S]: the scores."""
    counts = np.diff(plan.begins)
    places = np.minimum(np.arange(counts.max()), counts[:, None] - 1)  # the last one again, where a source has fewer
    sinks = plan.sinks[plan.begins[:-1, None] + places]
    here = np.take_along_axis(scores, sinks, 1)
    return (here[:, :, None] - columns[sinks]).min(1).astype(np.float64)


def _entries(units: np.ndarray, heights: np.ndarray) -> SparsePlan:
    sources, sinks = np.divmod(np.flatnonzero(units > 0), units.shape[1])
    return SparsePlan(sources, sinks, units[sources, sinks], heights)


def _move(columns: np.ndarray, units: np.ndarray, cycle: list[int]) -> None:
    """Move as much as possible of ``units`` [S, n] along ``cycle``, in place. ``columns`` [n, S]: the scores."""
    steps = []
    for source, target in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        (sinks,) = units[source].nonzero()
        own = columns[sinks]
        steps.append((source, target, sinks[(own[:, source] - own[:, target]).argmin()]))
    mass = min(units[source, sink] for source, _, sink in steps)
    for source, target, sink in steps:
        units[source, sink] -= mass
        units[target, sink] += mass


def _negative_cycle(losses: np.ndarray, heights: np.ndarray, slack: float) -> list[int]:
    """Sources [c] each of which hands on to the next, and the last to the first, with a gain of more than ``slack``;
    empty where there are none: then ``heights`` [S], changed in place, prove it (Bellman and Ford's shortest paths)."""
    before = np.full(len(heights), -1)
    while True:
        lengths = heights[:, None] + losses
        reached = lengths.min(0)
        (shorter,) = (reached < heights - slack).nonzero()
        if not len(shorter):
            return []
        heights[shorter] = reached[shorter]
        before[shorter] = lengths[:, shorter].argmin(0)
        cycle = _cycle(before.tolist(), shorter.tolist())
        if cycle:
            return cycle


def _cycle(before: list[int], starts: list[int]) -> list[int]:
    """A cycle in the graph of each source's predecessor (-1: none), in its direction, that is reached from one of
    ``starts``; empty where there is none."""
    seen = [-1] * len(before)
    for first in starts:
        at = first
        while at >= 0 and seen[at] < 0:
            seen[at] = first
            at = before[at]
        if at >= 0 and seen[at] == first:
            cycle = [at]
            while (at := before[at]) != cycle[0]:
                cycle.append(at)
            return cycle[::-1]
    return []
