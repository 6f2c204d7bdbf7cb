"""Random splits of data sets, stratified by label.

For a given seed, the splits are the same on every machine. Rows within a split stay in file order.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np

from knot_runner.config.settings.text_tasks import Role, SplitFile
from knot_runner.data.tasks import Examples, Images
from knot_runner.util.errors import UserError, nearest

Rows = TypeVar("Rows", Examples, Images)

#: Layouts: the sets of splits that the files of a data set may have. All splits but pool and train may be missing.
LAYOUTS = ({"pool"}, {"train", "heldout"}, {"train", "valid", "test"})


def named_rng(name: str) -> np.random.Generator:
    """Return a random generator whose seed is the first 64 bits of the sha256 of ``name``."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def cut_splits(labels: np.ndarray, share: float, seed: int, key: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Divide N rows at random into two parts. Return the sorted row numbers of both parts: (kept, taken).

    Rows are drawn as by scikit-learn's ``train_test_split``, which the public KNOT code uses. If :func:`can_stratify`
    is true, the draw is stratified by label, and a row whose label occurs only once is kept.

    Args:
        labels: Label of each row, int of shape [N].
        share: Fraction of the rows to take.
        seed: Seed of the draw.
        key: Key that the error message names.

    Raises:
        UserError: There are too few rows.
    """
    count = len(labels)
    if can_stratify(labels, share):
        common = np.flatnonzero(~_is_single(labels))
        taken = common[stratified_rows(labels[common], share, seed)]
    elif 0 < np.ceil(share * count) < count:
        taken = random_rows(count, share, seed)
    else:
        raise UserError(f"the split puts all rows (total: {count}) in one part. Use another share, or more rows", key)
    return np.setdiff1d(np.arange(count), taken), taken


def can_stratify(labels: np.ndarray, share: float) -> bool:
    """Return whether a split by the fraction ``share`` can be stratified by ``labels``.

    Rows whose label occurs only once are ignored. If L different labels remain, each part must get at least L rows.
    """
    common = labels[~_is_single(labels)]
    taken = int(np.ceil(share * len(common)))
    return min(taken, len(common) - taken) >= max(1, len(np.unique(common)))


def _is_single(labels: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return counts[inverse] == 1


def random_rows(count: int, share: float, seed: int) -> np.ndarray:
    """Return a random fraction ``share`` of the row numbers from 0 to ``count`` - 1, sorted.

    The number of drawn rows is rounded up. scikit-learn's ``train_test_split`` draws the same rows.
    """
    # Importing scikit-learn would take longer than a short run. Another version of it may draw other rows.
    return np.sort(np.random.RandomState(seed).permutation(count)[: int(np.ceil(share * count))])


def stratified_rows(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return a random fraction ``share`` of N row numbers, sorted. The draw is stratified by ``labels``, shape [N].

    The number of drawn rows is rounded up. Every label must have at least two rows. With L labels, at least L rows
    must be drawn and at least L rows must remain. scikit-learn's ``train_test_split`` draws the same rows.
    """
    rng = np.random.RandomState(seed)
    known, counts = np.unique(labels, return_counts=True)
    taken = int(np.ceil(share * len(labels)))
    kept_counts = _round_counts(counts, len(labels) - taken, rng)
    taken_counts = _round_counts(counts - kept_counts, taken, rng)
    rows = []
    for label, kept_count, taken_count in zip(known, kept_counts, taken_counts, strict=True):
        order = rng.permutation(np.flatnonzero(labels == label))
        rows.append(order[kept_count : kept_count + taken_count])
    return np.sort(np.concatenate(rows))


def _round_counts(counts: np.ndarray, total: int, rng: np.random.RandomState) -> np.ndarray:
    """Return ``counts``, of shape [C], scaled and rounded to the sum ``total`` (largest remainders, random ties)."""
    exact = counts / counts.sum() * total
    rounded = np.floor(exact)
    remainders = exact - rounded
    left = int(total - rounded.sum())
    for remainder in np.unique(remainders)[::-1]:
        if left <= 0:
            break
        tied = np.flatnonzero(remainders == remainder)
        chosen = rng.choice(tied, size=min(len(tied), left), replace=False)
        rounded[chosen] += 1
        left -= len(chosen)
    return rounded.astype(int)


def largest_remainders(exact: np.ndarray, total: int) -> np.ndarray:
    """Round the C non-negative numbers in ``exact`` to integers with the sum ``total``.

    Numbers with the largest remainders are rounded up. Among equal remainders, earlier numbers are rounded up first.
    """
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def limit(examples: Rows, most: int, seed: int) -> Rows:
    """Return a random sample of at most ``most`` rows, stratified by label. Rows keep their order."""
    if len(examples) <= most:
        return examples
    _, inverse, counts = np.unique(examples.labels, return_inverse=True, return_counts=True)
    sizes = largest_remainders(counts * most / len(examples), most)
    order = np.random.default_rng(seed).permutation(len(examples))
    sampled = [order[inverse[order] == label][:size] for label, size in enumerate(sizes)]
    return examples.take(np.sort(np.concatenate(sampled)))


def check_layout(where: str, names: set[str]) -> None:
    """Check that the splits in a data set's files form a combination in :data:`LAYOUTS`.

    Args:
        where: The setting that the error message names.
        names: Names of the splits.

    Raises:
        UserError: The combination is not supported.
    """
    known = set().union(*LAYOUTS)
    for name in sorted(names - known):
        raise UserError(f"unknown split{nearest(name, known)}", f"{where}.{name}")
    if names.isdisjoint({"pool", "train"}) or not any(names <= layout for layout in LAYOUTS):
        wrong = f"unsupported combination of splits: {', '.join(sorted(names))}" if names else "no files listed"
        raise UserError(f"{wrong}. Use 'pool', 'train' + 'heldout', or 'train' + 'valid' + 'test'", where)


def complete_splits(
    name: str, parts: dict[str, Examples], role: Role, split: SplitFile, notes: list[str]
) -> dict[str, Examples]:
    """Return the splits of a data set: train, valid and test. A transfer set has no test split.

    A split ``pool`` is divided into train, valid and test in the proportions of ``split``. A split ``heldout`` is
    halved into valid and test. If valid or test is still missing, it is drawn from train.

    The test part of a transfer set's pool is discarded. With the proportions in the task presets, 70% of each pool
    become training texts, as in KNOT's Table 1.

    Args:
        name: Name of the data set.
        parts: The splits in the files.
        role: Role of the data set.
        split: Proportions and seed of the division.
        notes: A line is appended if some labels are too rare for stratification.

    Raises:
        UserError: A split would be empty.
    """

    def cut(rows: Examples, share: float) -> tuple[Examples, Examples]:
        share = round(share, 9)  # .102 + .198 is slightly larger than .3, which would take one more row
        if not can_stratify(rows.labels, share):
            notes.append(f"{name}: some labels have too few rows, so {len(rows)} rows are split without stratification")
        kept, taken = cut_splits(rows.labels, share, split.seed, f"task.datasets.{name}")
        return rows.take(kept), rows.take(taken)

    wants_test = role != "transfer"
    if wants_test and split.test == 0 and not parts.keys() & {"test", "heldout"}:
        raise UserError(f"a share of 0 leaves no test rows for data set {name}. Use a share above 0", "task.split.test")
    train = parts["pool"] if "pool" in parts else parts["train"]
    valid = parts.get("valid")
    test = parts.get("test")
    if "heldout" in parts:
        valid, test = cut(parts["heldout"], 0.5)
    if "pool" in parts or (wants_test and valid is None and test is None):
        # first valid and test together, then test from these rows: 30% and 66% in the public code
        train, valid = cut(train, split.valid + split.test)
        if split.test > 0:
            valid, test = cut(valid, split.test / (split.valid + split.test))
    if wants_test and test is None:
        train, test = cut(train, split.test / (1 - split.valid))
    if valid is None:
        train, valid = cut(train, split.valid / (1 - split.test))
    splits = {"train": train, "valid": valid}
    if test is not None and wants_test:
        splits |= {"test": test}
    return splits


def chunk(name: str, examples: Examples, part: list[int]) -> Examples:
    """Return part i of n consecutive parts of ``examples``, as in KNOT's code for emotion recognition.

    The argument ``part`` is [i, n], with i counted from 0. The sizes of the parts differ by at most one.

    Raises:
        UserError: The part would be empty.
    """
    index, count = part
    first = len(examples) * index // count
    last = len(examples) * (index + 1) // count
    if first == last:
        raise UserError(f"too few rows ({len(examples)}) for {count} parts", f"task.datasets.{name}.chunk")
    return examples.take(np.arange(first, last))


def hold_out(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    """Return (train, test), where test is a random fraction ``share`` of ``images``.

    If ``images.users`` is None, the draw is stratified by label. Otherwise, the fraction is drawn from each user's
    images. Every user with at least two images then has images in both splits.

    Raises:
        UserError: There are too few images.
    """
    if images.users is None:
        kept, taken = cut_splits(images.labels, share, seed, f"task.holdout={share}")
    else:
        is_taken = _sample_each(images.users, share, seed)
        kept = np.flatnonzero(~is_taken)
        taken = np.flatnonzero(is_taken)
        if not len(taken):
            raise UserError(f"{share}: no writer has two images, so no image can be held out", "task.holdout")
    return images.take(kept), images.take(taken)


def _sample_each(users: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return a mask of shape [N] with a random ``share`` of each user's rows: at least one row, never all rows.

    A user with a single row gets none.
    """
    import pandas as pd  # slow to import; only data with writers and without a test set need pandas

    by_user = pd.Series(np.random.default_rng(seed).random(len(users))).groupby(users)
    sizes = by_user.transform("size")
    wanted = (sizes * share).round().clip(lower=1).clip(upper=sizes - 1)
    is_taken: np.ndarray = (by_user.rank() <= wanted).to_numpy()
    return is_taken


def limited(train: Images, test: Images, most: int, seed: int) -> tuple[Images, Images]:
    """Reduce the number of train images to at most ``most``, and the number of test images by the same factor.

    The result (train, test) has random samples, stratified by label (:func:`limit`).
    """
    if len(train) <= most:
        return train, test
    return limit(train, most, seed), limit(test, max(1, round(len(test) * most / len(train))), seed)
