"""Settings that are null are filled in from the data. A note reports a value that the data limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knot_runner import METHODS, compose
from knot_runner.config.settings.partition import Dirichlet, Manual, Pairs
from knot_runner.data.counts import Counts
from knot_runner.data.images import make_partition
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.asynchronous import Asynchronous
from knot_runner.methods.around.fleet.synchronous import Synchronous
from knot_runner.methods.federated import clustering
from knot_runner.pipelines.clients import check_sizes
from tests.golden.messages import refuses
from tests.unit.data.images.deals import balanced, same
from tests.unit.methods.federated.test_clustering import blocks, spec
from tests.unit.methods.federated.worlds import TRAINING, make_world


@pytest.mark.parametrize(("each", "floor"), [(400, 10), (199, 9), (100, 5), (19, 0)])
def test_floor_takes_at_most_half_of_the_smallest_class(each, floor):
    task, settings = balanced(each, 20), Dirichlet("dirichlet", 10, 5.0, None)
    filled = make_partition(settings, task, 0)
    assert same(filled, make_partition(replace(settings, floor=floor), task, 0))
    note = f"partition.floor={floor}: chosen, since a larger value would use more than half of the smallest class"
    assert (note in filled.notes) == (floor < 10)


@pytest.mark.parametrize(
    ("classes", "clients", "groups"),
    [
        (10, 20, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]),
        (5, 20, [[0, 1], [2, 3], [4]]),
        (10, 4, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
    ],
)
def test_pairs_are_groups_of_neighboring_classes(classes, clients, groups):
    task, settings = balanced(60, 20, classes), Pairs("pairs", clients, None)
    filled = make_partition(settings, task, 3)
    assert same(filled, make_partition(replace(settings, groups=groups), task, 3))
    assert len(set(filled.groups)) == len(groups)


def test_pairs_need_three_classes():
    with refuses():
        make_partition(Pairs("pairs", 4, None), balanced(60, 20, 2), 0)


@pytest.mark.parametrize(("classes", "own"), [(10, 5), (3, 3)])
def test_manual_has_five_classes_a_client_or_all(classes, own):
    task, settings = balanced(60, 20, classes), Manual("manual", 6, None, 1.0, 0.5, 5)
    filled = make_partition(settings, task, 0)
    assert same(filled, make_partition(replace(settings, classes_per_client=own), task, 0))
    assert (f"partition.classes_per_client={own}: each client has all classes" in filled.notes) == (own < 5)


@pytest.mark.parametrize(("sizes", "count"), [([2, 2, 2], 3), ([4, 4, 4], 5), ([1], 1)])
def test_clusters_are_five_or_half_of_the_clients(sizes, count):
    matrix, _ = blocks(sizes, seed=1)
    filled = clustering.cluster(matrix, spec(clusters=None), 0)
    assert filled.labels == clustering.cluster(matrix, spec(clusters=count), 0).labels
    assert (f"method.clustering.clusters={count}: chosen as half the number of clients" in filled.notes) == (count < 5)


@pytest.mark.parametrize(("wanted", "drawn"), [(3, 3), (50, 5), (0.5, 2), (1.0, 5), ("all", 5), (0.39, 1), (0.01, 1)])
def test_clients_per_round_is_at_most_all(wanted, drawn):
    federation = make_world([9] * 5).federation
    training = replace(TRAINING, clients_per_round=wanted, batch_size=2)
    federation = replace(federation, training=training)
    assert federation.participants == drawn == len(federation.drawn(0))
    notes = check_sizes(federation)
    assert notes == (["training.clients_per_round=50: all 5 clients take part in every round"] if wanted == 50 else [])


@pytest.mark.parametrize(("at_once", "buffer"), [(5, 2), (1, 1)])
def test_buffer_is_half_of_the_clients_at_once(at_once, buffer):
    words = ["task=mnist", "method=fedavg", "fleet=phones_async", "fleet.dropout=0"]
    settings = compose(words)[0].settings
    federation = make_world([9] * 5).federation
    federation = replace(federation, training=replace(TRAINING, clients_per_round=at_once))
    simulated, config = Asynchronous(METHODS["fedavg"], settings.fleet), settings.method
    assert len(simulated.next_step(config, simulated.init(config, federation), federation, 0).updates) == buffer


def test_median_deadline_drops_the_slower_half():
    words = ["task=mnist", "method=fedavg", "fleet=phones_drop", "fleet.dropout=0", "fleet.availability=null"]
    settings = compose(words)[0].settings
    federation = make_world([9] * 5).federation
    federation = replace(federation, training=replace(TRAINING, clients_per_round=5))
    simulated, config = Synchronous(METHODS["fedavg"], settings.fleet), settings.method
    requests, row = simulated.simulate(config, simulated.init(config, federation), federation, 0)
    assert (len(requests), row["late"]) == (3, 2)
    size = federation.layout.size
    times = devices.work_times(settings.fleet, federation, requests, size, size).values()
    assert row["clock"] == max(time.total for time in times)


def test_counts_skip_parties_without_a_split():
    parties = {f"party {k}": {"train": np.array([1, 2, 0]), "test": np.array([1, 0, 0])} for k in range(20)}
    parties["transfer"] = {"train": np.array([0, 0, 9])}
    train, test = Counts("parties", ["ape", "bee"], parties).lines()
    assert train.startswith("21 parties, train: 3 to 9 examples") and test.startswith("20 parties, test: 1 to 1")
