"""Measures of a run on resampled test items, from its stored predictions, as defined in ``metrics.py``.

All runs with the same test labels in the same order get the same items in each resample: both runs of a pair, and all
seeds. Data sets are resampled separately. For accuracy over clients there are no predictions in the clients' order:
each client's hits are drawn from their binomial distribution, which is equivalent to resampling its images, but
independently for each run, so that items shared by a pair do not narrow its interval.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from knot_runner.report.claims.pairs import ModelSide
from knot_runner.report.records.schema import is_count
from knot_runner.report.run_folders import Run, demand, kept_file, predictions, refuse_damage, rounds
from knot_runner.report.statistics.intervals import RESAMPLES, resampled_sums
from knot_runner.util.errors import UserError

#: Run id -> error in its records.
Problems = dict[str, str]
PARTITION = "partition.json"
#: Maximum number of columns summed at once.
WIDEST = 2000


@dataclass(frozen=True)
class Want:
    """A requested measure of a run: accuracy, f1 or sd ``on`` a data set or ALL, or accuracy ``over`` its clients."""

    run_id: str
    side: ModelSide
    measure: str
    on: str = "ALL"
    over: str | None = None


@dataclass(frozen=True)
class _Sums:
    """Sums of one model on one data set, per resample and class: ``hits``, ``predicted``, labels ``truth`` [B, C], and
    distances ``far`` [B, C] from the class's coordinates, None without coordinates."""

    hits: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    far: np.ndarray | None = None


def replicates(
    wanted: Iterable[Want], runs: Mapping[str, Run], command: str
) -> tuple[dict[Want, np.ndarray], Problems]:
    """Return (``wanted`` -> its values on ``RESAMPLES`` resamples [B], fractions for accuracy; errors of damaged
    records, whose runs are left out). ``runs``: finished runs by run id."""
    unique_wants = list(dict.fromkeys(wanted))
    problems: Problems = {}
    sums = _sums([want for want in unique_wants if want.over is None], runs, command, problems)
    found = {}
    for want in unique_wants:
        try:
            if want.over:
                found[want] = _over_clients(want, runs[want.run_id], command)
            elif want.run_id not in problems:
                found[want] = _measure(want.measure, want.on, sums[want.run_id, want.side])
        except UserError as problem:
            problems[want.run_id] = str(problem)
    return found, problems


def _measure(measure: str, on: str, by_data: Mapping[str, _Sums]) -> np.ndarray:
    parts = list(by_data.values()) if on == "ALL" else [by_data[on]]
    if measure == "sd":
        return np.mean([_semantic_distance(part) for part in parts], axis=0)
    hits, predicted, truth = (sum(getattr(part, name) for part in parts) for name in ("hits", "predicted", "truth"))
    if measure == "accuracy":
        return hits.sum(1) / truth.sum(1)
    either = predicted + truth
    shares = np.divide(2 * hits, either, out=np.zeros_like(either), where=either > 0)
    return shares.sum(1) / (either > 0).sum(1)


def _semantic_distance(part: _Sums) -> np.ndarray:
    assert part.far is not None
    present = part.truth > 0
    means = np.divide(part.far, part.truth, out=np.zeros_like(part.far), where=present)
    return means.sum(1) / present.sum(1)


#: A model: run id and side.
PredictionModel = tuple[str, ModelSide]


def _sums(
    wanted: Sequence[Want], runs: Mapping[str, Run], command: str, problems: Problems
) -> dict[PredictionModel, dict[str, _Sums]]:
    """Model -> data set -> sums, for every wanted model; adds damaged records to ``problems``."""
    measures: dict[str, set[str]] = defaultdict(set)
    for want in wanted:
        measures[want.run_id].add(want.measure)
    models = {(want.run_id, want.side) for want in wanted}
    # a test set is told by its name and the digest of its labels
    tests: dict[tuple[str, bytes], list[tuple[PredictionModel, np.ndarray]]] = defaultdict(list)
    for run_id, wanted_measures in measures.items():
        try:
            stored = predictions(runs[run_id], command)
        except UserError as problem:
            problems[run_id] = str(problem)
            continue
        for key, (probabilities, labels) in stored.items():
            model: PredictionModel = (run_id, "before" if key.startswith("before/") else "after")
            if model in models:
                test = (key.removeprefix("before/"), hashlib.sha256(labels.tobytes()).digest())
                points = runs[run_id].result["labels"].get("coordinates") if "sd" in wanted_measures else None
                tests[test].append((model, _columns(probabilities, labels, points, wanted_measures == {"accuracy"})))
    found: dict[PredictionModel, dict[str, _Sums]] = defaultdict(dict)
    for (name, digest), columns in tests.items():
        for model, sums in _of_test(columns, int.from_bytes(digest[:8], "big")):
            found[model][name] = sums
    return found


def _columns(probabilities: np.ndarray, labels: np.ndarray, coordinates: Any, pooled: bool) -> np.ndarray:
    """Per-item columns to sum [N, 3 or 4, C]: hits, predictions, labels and distance by class; ``pooled``: all classes
    as one, which is enough for accuracy."""
    classes = np.eye(probabilities.shape[1], dtype=np.float32)
    predicted, truth = classes[probabilities.argmax(1)], classes[labels]
    if pooled:
        hit = (predicted * truth).sum(1, keepdims=True)
        return np.stack([hit, np.ones_like(hit), np.ones_like(hit)], axis=1)
    kept = [predicted * truth, predicted, truth]
    if coordinates is not None:
        points = np.asarray(coordinates, dtype=np.float64)
        far = np.linalg.norm(probabilities.astype(np.float64) @ points - points[labels], axis=1)
        kept.append(truth * far[:, None].astype(np.float32))
    return np.stack(kept, axis=1)


def _of_test(models: list[tuple[PredictionModel, np.ndarray]], seed: int) -> Iterator[tuple[PredictionModel, _Sums]]:
    """Yield the sums of all ``models`` on one test set; their columns are concatenated, so that items are drawn few
    times."""
    flat = [(model, columns.shape[1:], columns.reshape(len(columns), -1)) for model, columns in models]
    step = max(1, WIDEST // max(columns.shape[1] for _, _, columns in flat))
    for first in range(0, len(flat), step):
        block = flat[first : first + step]
        sums = resampled_sums(np.concatenate([columns for _, _, columns in block], axis=1), seed)
        ends = np.cumsum([columns.shape[1] for _, _, columns in block])[:-1]
        for (model, shape, _), own in zip(block, np.split(sums, ends, axis=1), strict=True):
            yield model, _Sums(*own.reshape(-1, *shape).swapaxes(0, 1))


def _over_clients(want: Want, run: Run, command: str) -> np.ndarray:
    """Accuracy over the clients' own test images [B], averaged as ``want.over`` says."""
    accuracies = rounds(run, command)[-1]["clients"]
    sizes, groups = _test_sizes(run, len(accuracies), command), _groups(run, want.over, len(accuracies))
    there = np.array([value is not None and size > 0 for value, size in zip(accuracies, sizes, strict=True)])
    share = np.array([value or 0.0 for value in accuracies])
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(want.run_id.encode()).digest()[:8], "big"))
    hits = rng.binomial(sizes, share, (RESAMPLES, len(sizes))) * there
    named = [np.flatnonzero((groups == group) & there) for group in np.unique(groups[there])]
    return np.mean([hits[:, own].sum(1) / sizes[own].sum() for own in named], axis=0)


def _groups(run: Run, over: str | None, clients: int) -> np.ndarray:
    """Group of each client [clients]: accuracy is averaged by images within a group, and equally over groups."""
    if over == "unweighted":
        return np.arange(clients)
    clusters = run.result.get("clusters", {}).get("labels")
    return np.array(clusters) if over == "clusters" and clusters else np.zeros(clients, dtype=int)


def _test_sizes(run: Run, clients: int, command: str) -> np.ndarray:
    with refuse_damage(run, PARTITION, command):
        sizes = json.loads(kept_file(run, PARTITION, command))["test"]
        demand(isinstance(sizes, list) and len(sizes) == clients and all(is_count(size) for size in sizes))
    return np.array(sizes)
