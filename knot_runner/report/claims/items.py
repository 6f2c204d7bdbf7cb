"""Metrics of a run on resampled test items, from its stored predictions.

Each metric is computed by its entry in ``metrics.py``: from sums over items if the entry has ``of_sums``, otherwise by
the entry's function on each resample.

All runs with the same test labels in the same order get the same items in each resample. This holds for both runs of a
pair and for all seeds. Data sets are resampled separately. Accuracy over clients is different, because predictions are
not stored in the clients' order. Each client's number of correct answers is drawn from its binomial distribution, which
is equivalent to resampling the client's images. Each run draws independently, so items shared by a pair do not narrow
the pair's interval.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from knot_runner.config.strict import by_key
from knot_runner.metrics import METRICS, ClassSums, Metric, TestSet
from knot_runner.records import has_record
from knot_runner.report.claims.pairs import ModelSide, Want
from knot_runner.report.run_folders import (
    PREDICTIONS,
    RECOMPUTED_TOLERANCE,
    MeasuredRun,
    kept_file,
    lookup,
    predictions,
    rounds,
)
from knot_runner.report.statistics.intervals import RESAMPLES, item_draws, resampled_sums
from knot_runner.util.errors import UserError

PARTITION = "partition.json"
#: Maximum number of columns summed at once.
WIDEST = 2000


#: Errors in the records of a run, by its id; why there are no resamples of a measure, by the measure.
Problems = dict[str | Want, str]
#: Measure -> its values on ``RESAMPLES`` resamples [B], fractions for accuracy.
Bank = dict[Want, np.ndarray]


def replicates(wanted: Iterable[Want], runs: Mapping[str, MeasuredRun]) -> tuple[Bank, Problems]:
    """Return the resampled values of ``wanted``, and the problems that left measures without values.

    A problem is a damaged record, whose run is left out, or a measure that cannot be resampled. ``runs`` maps run ids
    to finished runs.
    """
    bank: Bank = {}
    problems: Problems = {}
    pending = []
    for want in dict.fromkeys(wanted):
        run = runs[want.run_id]
        if want.over or has_record(run.folder, run.result, PREDICTIONS):
            pending.append(want)
        else:
            problems[want] = f"runs of kind '{run.result.kind}' record no predictions"
    sums = _sums([want for want in pending if not want.over and METRICS[want.measure].of_sums], runs, problems)
    for want in pending:
        model = (want.run_id, want.side, want.measure)
        try:
            if want.over:
                bank[want] = _over_clients(want, runs[want.run_id])
            elif want.run_id in problems:
                continue
            elif model in sums:
                bank[want] = _of_sums(want, sums[model])
            else:
                bank[want] = _of_examples(want, runs[want.run_id])
        except _CannotResample as problem:
            problems[want] = str(problem)
        except UserError as problem:
            problems[want.run_id] = str(problem)
    return bank, problems


class _CannotResample(Exception):
    """A metric is undefined on a resample, or the metric of the stored predictions differs from the recorded value."""


def _of_sums(want: Want, by_data: Mapping[str, ClassSums]) -> np.ndarray:
    metric = METRICS[want.measure]
    parts = list(by_data.values()) if want.on == "ALL" else [by_data[want.on]]
    if metric.over == "pooled":
        parts = [functools.reduce(operator.add, parts)]
    try:
        return np.asarray(np.mean([metric.of_sums(part) for part in parts], axis=0))
    except Exception as problem:
        raise _failed(metric, problem) from problem


def _failed(metric: Metric, problem: Exception) -> _CannotResample:
    """Return the error to raise when a plug-in metric raises any exception."""
    why = str(problem) if isinstance(problem, UserError) else repr(problem)
    return _CannotResample(f"{metric.title} fails on resampled test examples ({why})")


def _of_examples(want: Want, run: MeasuredRun) -> np.ndarray:
    """Return the metric on each resample, computed with the metric's function on examples."""
    stored = {name: test for (side, name), test in _tests(run).items() if side == want.side}
    parts = list(stored.values()) if want.on == "ALL" else [stored[want.on]]
    whole = _value(want, parts)
    recorded = getattr(run.result, "before" if want.side == "before" else "metrics")[want.measure][want.on]
    if abs(whole - recorded) > RECOMPUTED_TOLERANCE * max(1.0, abs(recorded)):
        raise _CannotResample(
            f"{METRICS[want.measure].title} of the stored predictions is {whole:.6g}, but {recorded:.6g} was recorded"
        )
    draws = [_resamples(test) for test in parts]
    return np.array([_value(want, drawn) for drawn in zip(*draws, strict=True)])


def _tests(run: MeasuredRun) -> dict[tuple[ModelSide, str], TestSet]:
    """Return the stored predictions by (side, data set)."""
    coordinates = lookup(run.result, "labels.coordinates")
    tests: dict[tuple[ModelSide, str], TestSet] = {}
    for key, (shares, labels) in predictions(run).items():
        side: ModelSide = "before" if key.startswith("before/") else "after"
        tests[side, key.removeprefix("before/")] = TestSet(shares, shares.astype(np.float64), labels, coordinates)
    return tests


def _resamples(test: TestSet) -> Iterator[TestSet]:
    for block in item_draws(len(test.labels), _seed(test)):
        for items in block:
            yield TestSet(test.scores[items], test.probabilities[items], test.labels[items], test.coordinates)


def _seed(test: TestSet) -> int:
    """Return the resampling seed of a test set. It depends on the labels only, so all runs draw the same items."""
    return int.from_bytes(hashlib.sha256(test.labels.tobytes()).digest()[:8], "big")


def _value(want: Want, parts: Sequence[TestSet]) -> float:
    """Return the metric on test sets, pooled or averaged as its entry requires."""
    metric = METRICS[want.measure]
    if metric.over == "pooled":
        arrays = zip(*((test.scores, test.probabilities, test.labels) for test in parts), strict=True)
        shares, scores, labels = map(np.concatenate, arrays)
        parts = [TestSet(shares, scores, labels, parts[0].coordinates)]
    values = []
    for test in parts:
        try:
            value = metric.value(test)
        except Exception as problem:
            raise _failed(metric, problem) from problem
        if value is None or not math.isfinite(value):
            raise _CannotResample(f"{metric.title} is undefined on a resample of the test examples")
        values.append(value)
    return float(np.mean(values))


#: A model's sums for one metric: run id, side, metric.
WantedSums = tuple[str, ModelSide, str]


def _sums(
    wanted: Sequence[Want], runs: Mapping[str, MeasuredRun], problems: Problems
) -> dict[WantedSums, dict[str, ClassSums]]:
    """Return a dict from model and metric to the sums of each data set, and add damaged records to ``problems``."""
    metrics_of = by_key(((want.run_id, want.side), want.measure) for want in wanted)
    # a test set is told by its name and the seed of its draws
    tests: dict[tuple[str, int], list[tuple[WantedSums, np.ndarray]]] = defaultdict(list)
    for run_id in dict.fromkeys(want.run_id for want in wanted):
        try:
            stored = _tests(runs[run_id])
        except UserError as problem:
            problems[run_id] = str(problem)
            continue
        for (side, name), test in stored.items():
            for measure in sorted(set(metrics_of.get((run_id, side), []))):
                tests[name, _seed(test)].append(((run_id, side, measure), _columns(METRICS[measure], test)))
    sums_of: dict[WantedSums, dict[str, ClassSums]] = defaultdict(dict)
    for (name, seed), models in tests.items():
        step = max(1, WIDEST // max(columns[0].size for _, columns in models))
        for first in range(0, len(models), step):  # columns are concatenated, so that items are drawn few times
            block = models[first : first + step]
            flat = [columns.reshape(len(columns), -1) for _, columns in block]
            sums = resampled_sums(np.concatenate(flat, axis=1), seed)
            ends = np.cumsum([columns.shape[1] for columns in flat])[:-1]
            for (model, columns), part in zip(block, np.split(sums, ends, axis=1), strict=True):
                sums_of[model][name] = ClassSums(*part.reshape(-1, *columns.shape[1:]).swapaxes(0, 1))
    return sums_of


def _columns(metric: Metric, test: TestSet) -> np.ndarray:
    """Return an array [N, 3 or 4, C] whose sums over the N test items are the fields of :class:`ClassSums`.

    C is 1 for a metric that does not need separate classes.
    """
    classes = np.eye(test.scores.shape[1], dtype=np.float32)
    predicted = classes[test.scores.argmax(1)]
    truth = classes[test.labels]
    columns = [predicted * truth, predicted, truth]
    if metric.of_examples is not None:
        values = metric.of_examples(test)
        if values is None:
            raise UserError(f"{metric.title} of the stored predictions is undefined")
        columns.append(truth * values[:, None].astype(np.float32))
    stacked = np.stack(columns, axis=1)
    return stacked if metric.by_class else stacked.sum(2, keepdims=True)


def _over_clients(want: Want, run: MeasuredRun) -> np.ndarray:
    """Return the accuracy on the clients' own test images, for each resample [B].

    Accuracy is averaged over the images of each group, and then with equal weights over groups. ``want.over`` sets the
    groups: the clusters, each client, or all clients.
    """
    accuracies = rounds(run)[-1]["clients"]
    sizes = np.array(json.loads(kept_file(run, PARTITION))["test"])
    groups = np.zeros(len(accuracies), dtype=int)
    if want.over == "unweighted":
        groups = np.arange(len(accuracies))
    elif want.over == "clusters":
        groups = np.array(lookup(run.result, "clusters.labels") or groups)
    share = np.array(accuracies, dtype=float)  # NaN: not measured
    known = ~np.isnan(share) & (sizes > 0)
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(want.run_id.encode()).digest()[:8], "big"))
    hits = rng.binomial(sizes, np.nan_to_num(share), (RESAMPLES, len(sizes))) * known
    accuracies = []
    for group in np.unique(groups[known]):
        members = np.flatnonzero((groups == group) & known)
        accuracies.append(hits[:, members].sum(1) / sizes[members].sum())
    return np.asarray(np.mean(accuracies, axis=0))
