"""Cutting data into splits: stratified, seeded, and the same on every machine. Row order in a split is file order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import numpy as np

from knot_runner.config.settings import Role, SplitFile
from knot_runner.data.examples import TEXT_SPLITS, Examples
from knot_runner.data.stratified import random_cut, stratified_cut
from knot_runner.util.errors import UserError, nearest


class Labelled(Protocol):
    """Rows with a label each: texts or images."""

    labels: np.ndarray

    def __len__(self) -> int: ...

    def take(self, rows: np.ndarray) -> Self: ...


Rows = TypeVar("Rows", bound=Labelled)


def cut_splits(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (kept, taken) of a cut that takes ``share`` of ``labels`` (int [N]); both sorted.

    The cut is scikit-learn's stratified one, as in the public KNOT code; labels with a single row stay in the kept
    part. Where :func:`can_stratify` says no, it is plain random.
    """
    rows = np.arange(len(labels))
    if can_stratify(labels, share):
        single = _single(labels)
        common = rows[~single]
        kept, taken = stratified_cut(labels[common], share, seed)
        return np.sort(np.concatenate([common[kept], rows[single]])), common[taken]
    if not 0 < int(np.ceil(share * len(rows))) < len(rows):
        raise UserError(f"{len(rows)} rows are too few to be cut in two")
    return random_cut(len(rows), share, seed)


def can_stratify(labels: np.ndarray, share: float) -> bool:
    """Whether both sides of the cut have room for every label that has two rows or more."""
    common = labels[~_single(labels)]
    taken = int(np.ceil(share * len(common)))
    return min(taken, len(common) - taken) >= max(1, len(np.unique(common)))


def _single(labels: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return counts[inverse] == 1


HalfSplits = Callable[[Examples, float], tuple[Examples, Examples]]

#: what the files of one data set may be: all rows, or train with valid and test apart, or with both in one
LAYOUTS = ({"pool"}, {"train", "heldout"}, {"train", "valid", "test"})


def check_layout(where: str, names: set[str]) -> None:
    """``names`` of given splits must be one pool, or have train, and beside it either heldout or valid, test."""
    known = set().union(*LAYOUTS)
    for name in sorted(names - known):
        raise UserError(f"{where}.{name}: there is no such split{nearest(name, known)}")
    if not ("pool" in names or "train" in names) or not any(names <= layout for layout in LAYOUTS):
        raise UserError(
            f"{where}: {', '.join(sorted(names)) or 'nothing'} do not go together; "
            "right are pool, train + heldout, or train with valid and test"
        )


def complete(
    name: str, parts: dict[str, Examples], role: Role, split: SplitFile, notes: list[str]
) -> dict[str, Examples]:
    """Train, valid and (but for a transfer set) test from what the files give: official splits as they are, ``pool``
    cut by ``split``, ``heldout`` halved, and a split that is not there cut from train.

    A transfer set given as a pool is cut like the others, so that its texts are the paper's: the 70% train part
    (knot.md 1.6); its test part goes unused. ``notes`` gets a line when labels are too rare to stratify by.
    """

    def halves(rows: Examples, share: float) -> tuple[Examples, Examples]:
        share = round(share, 9)  # .102 + .198 is a hair above .3, which would take one row more
        if not can_stratify(rows.labels, share):
            notes.append(f"{name}: too few rows of some labels to cut {len(rows)} rows by label; cut at random")
        kept, taken = cut_splits(rows.labels, share, split.seed)
        return rows.take(kept), rows.take(taken)

    wants_test = role != "transfer"
    if wants_test and split.test == 0 and not parts.keys() & {"test", "heldout"}:
        raise UserError(f"task.split.test: 0 leaves {name} no rows to test on")
    try:
        made = _complete(parts, split, wants_test, halves)
    except UserError as problem:
        raise UserError(f"task.datasets.{name}: {problem}") from None
    return {key: made[key] for key in TEXT_SPLITS if key in made and (key != "test" or wants_test)}


def _complete(
    parts: dict[str, Examples], split: SplitFile, wants_test: bool, halves: HalfSplits
) -> dict[str, Examples]:
    made = dict(parts)
    if "heldout" in made:
        made["valid"], made["test"] = halves(made.pop("heldout"), 0.5)
    if "pool" in made or (wants_test and "valid" not in made and "test" not in made):
        pool = made.pop("pool") if "pool" in made else made["train"]
        # one cut for both, then one between them: the public code's 30%, of which 66% are test
        made["train"], held = halves(pool, split.valid + split.test)
        if split.test == 0:
            return made | {"valid": held}
        made["valid"], made["test"] = halves(held, split.test / (split.valid + split.test))
    if wants_test and "test" not in made:
        made["train"], made["test"] = halves(made["train"], split.test / (1 - split.valid))
    if "valid" not in made:
        made["train"], made["valid"] = halves(made["train"], split.valid / (1 - split.test))
    return made


def chunk(name: str, examples: Examples, part: list[int]) -> Examples:
    """The ``i``-th of ``n`` consecutive parts (``part`` = [i, n]); parts differ by at most one row (knot.md 1.6)."""
    index, count = part
    first, last = len(examples) * index // count, len(examples) * (index + 1) // count
    if first == last:
        raise UserError(f"task.datasets.{name}.chunk: {len(examples)} rows cannot be parted into {count}")
    return examples.take(np.arange(first, last))


def limit(examples: Rows, most: int, seed: int) -> Rows:
    """At most ``most`` rows, each label with its share (largest remainders), drawn with ``seed``, in file order."""
    if len(examples) <= most:
        return examples
    values, inverse, counts = np.unique(examples.labels, return_inverse=True, return_counts=True)
    exact = counts * most / len(examples)
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: most - sizes.sum()]] += 1
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(examples))
    drawn = [order[inverse[order] == k][:size] for k, size in enumerate(sizes)]
    return examples.take(np.sort(np.concatenate(drawn)))
