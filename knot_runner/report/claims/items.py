"""Metrics of runs on bootstrap resamples of the test examples, from stored predictions.

Each data set is resampled separately. All runs with the same test labels in the same order use the same resamples.

The accuracy over clients is resampled differently, because the predictions are not stored in the order of the clients.
For each client, the number of correct predictions is drawn from a binomial distribution with the client's accuracy as
success probability. This is equivalent to resampling the client's test examples. However, each run draws independently,
so that a paired comparison of two runs is not more precise than an unpaired one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from knot_runner.metrics import METRICS, ClassSums, Metric, TestSet
from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.claims.pairs import Want
from knot_runner.report.run_folders import (
    PREDICTIONS,
    MeasuredRun,
    ModelSide,
    kept_file,
    lookup,
    predictions,
    rounds,
)
from knot_runner.report.statistics.intervals import RESAMPLES, item_weights
from knot_runner.util.errors import UserError

PARTITION = "partition.json"
#: The files from which measures are resampled.
RECORDS = (PREDICTIONS, ROUNDS_FILE, PARTITION)

#: Measure -> the reason why the measure cannot be resampled.
Problems = dict[Want, str]
#: Measure -> array of the values on B = ``RESAMPLES`` resamples (a fraction for accuracy).
Bank = dict[Want, np.ndarray]
#: The id of a run, the side of the distillation (before or after), and a metric.
ModelMetric = tuple[str, ModelSide, str]
#: (Name of a test set, seed of its resamples) -> model and metric -> array whose rows are summed over the items of each
#: resample.
Columns = dict[tuple[str, int], dict[ModelMetric, np.ndarray]]


def replicates(wanted: Iterable[Want], runs: Mapping[str, MeasuredRun]) -> tuple[Bank, Problems]:
    """Return the wanted measures on resampled test examples, and the reasons why some measures are missing.

    Args:
        wanted: The measures to compute.
        runs: A dict from run id to finished run. In each run, the files in :data:`RECORDS` must be undamaged.
    """
    bank: Bank = {}
    problems: Problems = {}
    columns: Columns = defaultdict(dict)
    by_sums = []
    for want in wanted:
        run = runs[want.run_id]
        metric = METRICS[want.measure]
        try:
            needed = [PREDICTIONS]
            if want.over:
                needed = [ROUNDS_FILE, PARTITION]
            for name in needed:
                if not has_record(run.folder, run.result, name):
                    raise _CannotResample(f"runs of kind '{run.result.kind}' do not save {name}")
            if want.over:
                bank[want] = _over_clients(want, run)
                continue
            if metric.of_sums is None:
                raise _CannotResample(f"{metric.title} is not computed from sums over examples")
            model = (want.run_id, want.side, want.measure)
            for name, test in _tests(want, run).items():
                columns[name, _seed(test.labels.tobytes())][model] = _columns(metric, test)
            by_sums.append((want, model))
        except _CannotResample as problem:
            problems[want] = str(problem)
    sums = _sums(columns)
    for want, model in by_sums:
        try:
            bank[want] = _of_sums(want, sums[model])
        except _CannotResample as problem:
            problems[want] = str(problem)
    return bank, problems


class _CannotResample(Exception):
    """A metric is undefined on a resample, or cannot be computed from sums."""


def _tests(want: Want, run: MeasuredRun) -> dict[str, TestSet]:
    """Return the test sets of the wanted measure by name, from the stored predictions of the run."""
    coordinates = lookup(run.result, "labels.coordinates")
    tests = {}
    for name, (shares, labels) in predictions(run, want.side).items():
        if want.on in (name, "ALL"):
            tests[name] = TestSet(shares, shares.astype(np.float64), labels, coordinates)
    return tests


def _seed(content: bytes) -> int:
    """Return the resampling seed of test labels, so that all runs with equal labels draw the same items."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def _of_sums(want: Want, by_data: Mapping[str, ClassSums]) -> np.ndarray:
    """Return the metric on each resample, computed from the sums over the items of each data set."""
    metric = METRICS[want.measure]
    parts = list(by_data.values()) if want.on == "ALL" else [by_data[want.on]]
    if metric.over == "pooled":
        parts = [functools.reduce(operator.add, parts)]
    try:
        return np.asarray(np.mean([metric.of_sums(part) for part in parts], axis=0))
    except Exception as problem:
        why = str(problem) if isinstance(problem, UserError) else repr(problem)
        raise _CannotResample(f"{metric.title} fails on resampled test examples ({why})") from problem


def _sums(columns: Columns) -> dict[ModelMetric, dict[str, ClassSums]]:
    """Return the sums over the items of each resample, by model and metric, and by data set."""
    sums: dict[ModelMetric, dict[str, ClassSums]] = defaultdict(dict)
    for (name, seed), models in columns.items():
        blocks = defaultdict(list)
        for weights in item_weights(len(next(iter(models.values()))), seed):
            for model, values in models.items():
                blocks[model].append(np.tensordot(weights, values, 1))
        for model, parts in blocks.items():
            sums[model][name] = ClassSums(*np.concatenate(parts).swapaxes(0, 1).astype(np.float64))
    return sums


def _columns(metric: Metric, test: TestSet) -> np.ndarray:
    """Return an array of shape [N, 3 or 4, C]; its sums over the N test items are the fields of :class:`ClassSums`.

    C is 1 for a metric that does not need separate classes.
    """
    classes = np.eye(test.scores.shape[1], dtype=np.float32)
    predicted = classes[test.scores.argmax(1)]
    truth = classes[test.labels]
    columns = [predicted * truth, predicted, truth]
    if metric.of_examples is not None:
        values = metric.of_examples(test)
        if values is None:
            raise _CannotResample(f"{metric.title} of the stored predictions is undefined")
        columns.append(truth * values[:, None].astype(np.float32))
    stacked = np.stack(columns, axis=1)
    return stacked if metric.by_class else stacked.sum(2, keepdims=True)


def _over_clients(want: Want, run: MeasuredRun) -> np.ndarray:
    """Return the accuracy on the clients' own test images for each of B resamples, shape [B].

    The result is the unweighted mean over groups of the accuracy on all test images of a group. ``want.over`` selects
    the groups: clusters of clients, single clients, or all clients as one group.
    """
    import pandas as pd

    share = np.array(rounds(run)[-1]["clients"], dtype=float)  # NaN: not measured
    sizes = np.array(json.loads(kept_file(run, PARTITION))["test"])
    groups = np.zeros(len(share), dtype=int)
    if want.over == "unweighted":
        groups = np.arange(len(share))
    elif want.over == "clusters":
        groups = np.array(lookup(run.result, "clusters.labels") or groups)
    rng = np.random.default_rng(_seed(want.run_id.encode()))
    hits = rng.binomial(sizes, np.nan_to_num(share), (RESAMPLES, len(sizes)))
    known = ~np.isnan(share) & (sizes > 0)
    correct = pd.DataFrame(hits.T[known]).groupby(groups[known]).sum()  # of shape [groups, B]
    examples = pd.Series(sizes[known]).groupby(groups[known]).sum()
    return np.asarray(correct.div(examples, axis=0).mean())
