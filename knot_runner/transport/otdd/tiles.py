"""Cutting the pairs of a matrix into tiles, and what a worker needs to know for one of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from knot_runner.transport.otdd.first_iteration import FirstIteration, LabelProducts

#: sets in a block, at most
SETS_A_BLOCK = 10
#: bytes that the interpolating measures of a tile may take, and the scores of one client in it
MEASURES, SCORES = 2**26, 2**27


@dataclass(frozen=True, eq=False)
class Tile:
    """``pairs`` [m, 2], the draws of each [m, K, 3] and the features [S, d] of the first points (draws.py) about their
    mean, what is known of the sets that the pairs name, and the ``means``' part of the distances [m, 2] (means.py)."""

    pairs: np.ndarray
    times: np.ndarray
    start: np.ndarray
    openings: dict[int, FirstIteration]
    labels: LabelProducts
    means: np.ndarray


def cut_tiles(sets: int, support: int, features: int, largest: int) -> list[np.ndarray]:
    """Pairs (i, j), i < j, of each tile [m, 2]: all sets of one block with all of another, at least five blocks.

    Depends on these numbers alone (``largest``: samples of the largest set), since a product's last digits depend on
    what is stacked with it: a tile is always the same tile, whatever is known already and whoever computes it.
    """
    room = math.isqrt(max(1, MEASURES // (32 * support * features)))
    side = max(1, min(SETS_A_BLOCK, sets // 5, room, SCORES // (16 * support * largest)))
    blocks = [np.arange(begin, min(begin + side, sets)) for begin in range(0, sets, side)]
    tiles = []
    for first, second in itertools.combinations_with_replacement(blocks, 2):
        pairs = [(i, j) for i in first for j in second if i < j]
        if pairs:
            tiles.append(np.array(pairs, dtype=int))
    return tiles
