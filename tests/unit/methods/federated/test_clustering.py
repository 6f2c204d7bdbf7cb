"""Spectral clustering against scikit-learn's own graphs and hand-made spectra; clusters side by side against apart."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from knot_runner.config.settings.methods.federated import Stragglers
from knot_runner.config.settings.methods.transport import ClusteringSettings, FedwadSettings, OtddSettings
from knot_runner.methods.around.clusters import cluster_state, joint_state, per_cluster
from knot_runner.methods.federated import clustering
from tests.golden.messages import refuses
from tests.unit.methods.federated.worlds import method_of, settings

OTDD = OtddSettings(
    "federated", "sqrt_frobenius", "root_diagonal", 100, "float64", FedwadSettings("approximate", 10, 10, 0.5, 1.0)
)


def spec(**changes):
    return ClusteringSettings(**{"graph": "affinity", "clusters": 5, "scale": "largest", "otdd": OTDD, **changes})


def blocks(sizes, seed, far=3000.0):
    """Squared distances [N, N] of planted groups, in a random order, and the group of each."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    matrix = np.where(groups[:, None] == groups, 500.0, far) + rng.uniform(0, 200, (len(groups),) * 2)
    matrix = (matrix + matrix.T) / 2
    np.fill_diagonal(matrix, 0)
    return matrix, groups


@pytest.mark.parametrize("graph", ["affinity", "sparse3", "sparse5"])
@pytest.mark.parametrize("sizes", [[4] * 5, [2, 3, 4, 5, 6], [7, 3, 3, 4, 3]])
def test_planted_groups_are_recovered(graph, sizes, recwarn):
    matrix, groups = blocks(sizes, seed=1)
    actual = clustering.cluster(matrix, spec(graph=graph), 0)
    assert clustering.adjusted_rand(actual.labels, groups.tolist()) == 1.0
    assert actual == clustering.cluster(matrix, spec(graph=graph), 0)
    assert sorted(client for members in actual.members for client in members) == list(range(sum(sizes)))
    assert [members[0] for members in actual.members] == sorted(members[0] for members in actual.members)
    assert (graph, sizes) != ("sparse3", [4] * 5) or any("separate parts" in note for note in actual.notes)
    assert not len(recwarn)


@pytest.mark.filterwarnings("ignore:Graph is not fully connected")
@pytest.mark.parametrize("graph", ["affinity", "sparse3", "sparse5"])
def test_cluster_agrees_with_scikit_learns_own_graphs(graph):
    rng = np.random.default_rng(3)
    points = rng.normal(size=(14, 3)) + 3 * rng.integers(0, 3, (14, 1))  # not well apart: the graph's details matter
    matrix = ((points[:, None] - points) ** 2).sum(2)
    if graph == "affinity":
        kind, given = {"affinity": "precomputed"}, (matrix.max() - matrix) / matrix.max()
    else:
        kind, given = {"affinity": "precomputed_nearest_neighbors", "n_neighbors": int(graph[-1])}, matrix
    expected = SpectralClustering(3, n_init=10, random_state=7, **kind).fit_predict(given)
    actual = clustering.cluster(matrix, spec(graph=graph, clusters=3), 7)
    assert adjusted_rand_score(expected, actual.labels) == 1.0


def test_eigenvalues_match_complete_graphs_by_hand():
    """All weights 1, n clients: 0 once and n / (n - 1); two such graphs apart: each eigenvalue twice."""
    whole = clustering.eigenvalues(np.ones((4, 4)))
    np.testing.assert_allclose(whole, [0, 4 / 3, 4 / 3, 4 / 3], atol=1e-14)
    apart = clustering.eigenvalues(np.kron(np.eye(2), np.ones((4, 4))))
    np.testing.assert_allclose(apart, [0, 0] + [4 / 3] * 6, atol=1e-14)
    assert clustering.eigengap(whole) == 1 and clustering.eigengap(apart) == 2
    for values, count in (  # up to half of the clients
        ([0, 0, 0, 1, 1, 1], 3), ([0, 0, 0.1, 0.1, 1, 1], 2), ([0, 0, 0.1, 0.1, 1], 2), ([0, 9], 1), ([0], 1),
    ):  # fmt: skip
        assert clustering.eigengap(np.array(values, float)) == count


@pytest.mark.parametrize("graph", ["affinity", "sparse5"])
@pytest.mark.parametrize("groups", [2, 5])
def test_eigengap_finds_how_many_groups_there_are(graph, groups):
    matrix, planted = blocks([5] * groups, seed=2)
    actual = clustering.cluster(matrix, spec(graph=graph, clusters="eigengap"), 0)
    assert clustering.adjusted_rand(actual.labels, planted.tolist()) == 1.0
    assert any(f"clusters={groups}: chosen by the widest gap" in note for note in actual.notes)


def test_affinity_divides_by_scale_or_largest_distance():
    matrix = np.array([[0.0, 2.0], [2.0, 0.0]])
    np.testing.assert_array_equal(clustering.affinity(matrix, spec(scale=8)), [[1, 0.75], [0.75, 1]])
    np.testing.assert_array_equal(clustering.affinity(matrix, spec()), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(clustering.affinity(0 * matrix, spec()), np.ones((2, 2)))


def test_clusters_of_each_client_and_of_all():
    for graph, clusters, labels in (("affinity", 5, [0, 1, 2, 3, 4]), ("affinity", 1, [0] * 5), ("none", 5, [0] * 5)):
        assert clustering.cluster(blocks([2, 3], 0)[0], spec(graph=graph, clusters=clusters), 0).labels == labels
    assert clustering.adjusted_rand([0] * 5, None) is None


APART = 6210.3 * (1 - np.eye(6))


@pytest.mark.parametrize(("matrix", "changes"), [
    (APART[:5, :5], {"clusters": 6}), (APART[:5, :5], {"graph": "sparse5", "clusters": 2}), (APART, {"scale": 5000.0}),
    (np.array([[0, np.nan], [np.nan, 0]]), {"clusters": 2}),
], ids=["clusters", "graph", "scale", "nan"])  # fmt: skip
def test_cluster_refuses_impossible_settings_and_nan_distances(matrix, changes):
    with refuses():
        clustering.cluster(matrix, spec(**changes), 0)


@pytest.mark.parametrize("seed", [7, 2**32 + 5])
def test_k_means_begins_where_the_seed_says(monkeypatch, seed):
    given = []

    def recorded(*arguments, **named):
        given.append(named["random_state"])
        return SpectralClustering(*arguments, **named)

    monkeypatch.setattr(clustering, "SpectralClustering", recorded)
    clustering._spectral(np.kron(np.eye(2), np.ones((3, 3))), 2, seed)
    assert given == [seed % 2**32]


CASES = [
    settings("fedavg"),
    settings("fedavg", temperature=0.5, stragglers=Stragglers(0.5, 0.2, 3)),
    settings("fedprox"),
    settings("scaffold"),
    settings("fedrep", final_head_epochs=2),
    settings("fedper", temperature=0.25, final_head_epochs=2),
    settings("ditto"),
]


def all_rounds(method, config, federation, engine, name=lambda client: client):
    state, round = method.init(config, federation), 0
    while requests := method.plan(config, state, federation, round):
        trained = engine.train([dataclasses.replace(r, client=name(r.client)) for r in requests])
        came = [dataclasses.replace(t, client=r.client) for t, r in zip(trained, requests, strict=True)]
        (state, _, _), round = method.fold(config, state, federation, round, requests, came, None), round + 1
    return state


@pytest.mark.parametrize(("config", "clusters"), [*((config, [[0, 3], [1, 2, 4]]) for config in CASES),
                                                  (CASES[1], [[*range(5)]])])  # fmt: skip
def test_clusters_learn_as_federations_of_their_own(deep, config, clusters):
    method, everyone = method_of(config), deep.with_training(rounds=2).federation
    both = per_cluster(method, [everyone.cluster(members) for members in clusters])
    state = all_rounds(both, config, everyone, deep.engine)
    for number, members in enumerate(clusters):
        training = dataclasses.replace(everyone.training, clients_per_round=min(3, len(members)))
        own = {"clients": tuple(everyone.clients[m] for m in members)}
        alone = dataclasses.replace(everyone, training=training, **own)
        if config.stragglers is None or len(clusters) == 1:  # who is slow is drawn from all clients
            expected = all_rounds(method, config, alone, deep.engine, members.__getitem__)
            renamed = {_renamed(key, members): value for key, value in expected.items()}
            assert cluster_state(state, number).keys() == renamed.keys()
            assert all(torch.equal(value, renamed[key]) for key, value in cluster_state(state, number).items())
        for client in members:
            one = method.deployed(config, cluster_state(state, number), everyone.cluster(members), client)
            assert torch.equal(one.weights, both.deployed(config, state, everyone, client).weights)
    assert joint_state([cluster_state(state, number) for number in range(len(clusters))]).keys() == state.keys()


def _renamed(key, members):
    return re.sub(r"/(\d+)", lambda client: f"/{members[int(client[1])]}", key)


def test_cluster_none_of_whose_clients_trained_stays_as_it_is(linear):
    config, everyone = settings(), linear.federation
    both = per_cluster(method_of(config), [everyone.cluster(members) for members in ([0, 3], [1, 2, 4])])
    state = both.init(config, everyone)
    requests = [request for request in both.plan(config, state, everyone, 0) if request.client in (0, 3)]
    after, _, _ = both.fold(config, state, everyone, 0, requests, linear.engine.train(requests), None)
    changed = {key.split("/")[1] for key, value in state.items() if not torch.equal(after[key], value)}
    assert after.keys() == state.keys() and changed == {"0"}
