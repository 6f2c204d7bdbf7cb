"""Seconds for a matrix of federated dataset distances: ours against a plain loop of the published structure.

W1: 20 clients with 3000 samples; W2: 100 clients with 600. All have 784 features and two classes, S=10, K=10. Ours
computes the whole matrix in ``--cores`` worker processes. The plain loops are timed on one pair after another and
extrapolated to all pairs, with as many BLAS threads as there are ``--threads``:

published   augments both clients anew for every pair with the nonsymmetric eigensolver, solves an exact OTDD of which
            nothing is used, and runs FedWaD on all 2352 columns with the network simplex at POT's default cap
leaner      pair.py: symmetric eigensolver, no exact OTDD, otherwise the same, with all plans optimal

They take turns, so that what else the machine does hits all of them; medians are printed, of wall and of CPU seconds.

python scripts/bench.py fedwad --workload W1 W2 --repeats 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import ot
from process_tree import timed
from threadpoolctl import threadpool_limits

from knot_runner.config.settings.methods.transport import FedwadSettings, OtddSettings
from knot_runner.transport.otdd import LabeledSamples, computed_distances, draw_times, first_points

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.oracles.transport.otdd.pair import pair_distance

SEED = 7
FEATURES = 784
OPTIONS = OtddSettings(
    "federated", "sqrt_frobenius", "root_diagonal", 10_000, "float64", FedwadSettings("approximate", 10, 10, 0.5, 1.0)
)


@dataclass(frozen=True)
class Workload:
    """``clients`` of ``samples`` each."""

    clients: int
    samples: int

    @property
    def pairs(self) -> int:
        return self.clients * (self.clients - 1) // 2

    def sets(self) -> list[LabeledSamples]:
        """Two classes each, of ten: a mean, 40 directions of spread, and noise."""
        draws = np.random.default_rng(SEED)
        means = draws.normal(0, 0.6, (10, FEATURES))
        spreads = draws.normal(0, 0.12, (10, 40, FEATURES))
        sets = []
        for client in range(self.clients):
            labels = np.arange(self.samples) % 2
            classes = labels + 2 * (client % 5)
            points = means[classes] + 0.3 * draws.normal(size=(self.samples, FEATURES))
            for one in np.unique(classes):
                here = classes == one
                points[here] += draws.normal(size=(int(here.sum()), 40)) @ spreads[one]
            sets.append(LabeledSamples(points, labels))
        return sets


WORKLOADS = {"W1": Workload(20, 3000), "W2": Workload(100, 600)}
QUICK = {"W1": Workload(6, 300), "W2": Workload(10, 60)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--precision", nargs="+", choices=["float64", "float32"], default=["float64", "float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="worker processes of ours")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of the plain loops")
    parser.add_argument("--support", type=int, default=10, help="S")
    parser.add_argument("--quick", action="store_true", help="a few small clients: does it run?")


def main(options: argparse.Namespace) -> None:
    for name in options.workload:
        workload = (QUICK if options.quick else WORKLOADS)[name]
        settings = replace(OPTIONS, fedwad=replace(OPTIONS.fedwad, support=options.support))
        found = _measured(workload, settings, options)
        print(f"{name}: {workload.clients} clients x {workload.samples}, {workload.pairs} pairs, S={options.support}")
        print("                          wall s     CPU s  x published   by CPU  x leaner   by CPU")
        for line, (wall, busy) in found.items():
            ratios = [found[plain][place] / value for plain in PLAIN for place, value in enumerate((wall, busy))]
            cells = f"{ratios[0]:12.1f} {ratios[1]:8.1f} {ratios[2]:9.1f} {ratios[3]:8.1f}"
            print(f"  {line:<20} {wall:9.1f} {busy:9.1f} {cells}")


def _measured(
    workload: Workload, settings: OtddSettings, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Line -> median (wall, CPU) seconds of the whole matrix."""
    sets = workload.sets()
    found: dict[str, list[tuple[float, float]]] = {}
    for repeat in range(options.repeats):
        pair = repeat % (workload.clients - 1), workload.clients - 1
        for line, work in PLAIN.items():
            with threadpool_limits(options.threads, "blas"):
                times = timed(lambda work=work, pair=pair: work(sets, *pair, settings))
            found.setdefault(line, []).append(tuple(value * workload.pairs for value in times))
        for precision in options.precision:
            chosen = replace(settings, precision=precision)
            times = timed(lambda chosen=chosen: list(computed_distances(sets, chosen, SEED, options.cores, {})))
            found.setdefault(f"ours, {precision}", []).append(times)
    return {line: tuple(map(statistics.median, zip(*times, strict=True))) for line, times in found.items()}


# ----------------------------------------------------------------------------------------- plain loops, one pair each


def _published(sets: list[LabeledSamples], i: int, j: int, settings: OtddSettings) -> float:
    first, second = (_published_augmentation(sets[one]) for one in (i, j))
    cost = ot.dist(sets[i].points, sets[j].points) + ot.dist(first[:, FEATURES:], second[:, FEATURES:])
    _published_plan(cost)  # the exact distance, of which nothing is used
    middle = np.random.default_rng(SEED).normal(size=(settings.fedwad.support, first.shape[1]))
    for _ in range(settings.fedwad.iterations):
        near = [_published_step(middle, samples) for samples in (first, second)]
        middle = _published_step(near[1], near[0])
    costs = [ot.dist(middle, samples) for samples in (first, second)]
    return sum(float((_published_plan(cost) * cost).sum()) ** 0.5 for cost in costs) ** 2


def _published_augmentation(samples: LabeledSamples) -> np.ndarray:
    points = np.empty((samples.size, 3 * FEATURES))
    points[:, :FEATURES] = samples.points
    for label in np.unique(samples.labels):
        here = samples.labels == label
        own = samples.points[here]
        values, vectors = np.linalg.eig(np.cov(own, rowvar=False) + 1e-6 * np.eye(FEATURES))
        root = (vectors * np.sqrt(values.astype(complex))) @ np.linalg.inv(vectors)
        points[here, FEATURES:] = np.concatenate([own.mean(0), np.diag(root).real])
    return points


def _published_step(middle: np.ndarray, samples: np.ndarray) -> np.ndarray:
    return 0.5 * middle + 0.5 * len(middle) * (_published_plan(ot.dist(middle, samples)) @ samples)


def _published_plan(cost: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the default cap is hit
        return ot.emd(ot.unif(len(cost)), ot.unif(cost.shape[1]), cost / cost.max())


def _leaner(sets: list[LabeledSamples], i: int, j: int, settings: OtddSettings) -> float:
    start = first_points(FEATURES, settings, SEED)
    return pair_distance(sets[i], sets[j], settings, start, draw_times(i, j, settings.fedwad, SEED))


PLAIN = {"published": _published, "leaner": _leaner}
