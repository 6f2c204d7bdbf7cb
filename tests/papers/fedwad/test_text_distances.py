"""Runs that compare texts, through the command line: distances, clusters, coresets, and what is shown of them."""

import json

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from knot_runner.cli.main import main
from tests.runs import RunRecord, run
from tests.tiny import TINY_TEXTS, replaced

FEATURES = "method.clustering.otdd.features"
#: Generated dialogues of five data sets at six clients in three planted groups of emotions.
CLUSTERED = replaced(
    TINY_TEXTS, "partition=pairs", "partition.num_clients=6", "task.max_examples=200", "task.context=0",
    "method=clustered_fedavg", "method.clustering.clusters=3",
)  # fmt: skip
CORESET = ["task=sa", "task.max_examples=60", "hardware.num_workers=1", "method.features.components=6",
           "method.epochs=4", "method.points=4", "method.fedwad.iterations=3"]  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> RunRecord:
    """Clusters of clients by their words."""
    return run(tmp_path_factory.mktemp("out"), *CLUSTERED)


@pytest.mark.thorough
def test_clustering_recovers_planted_groups_from_words(once):
    result = once.result
    groups = json.loads((once.folder / "partition.json").read_text())["groups"]
    assert result["clusters"]["ari"] == adjusted_rand_score(groups, result["clusters"]["labels"]) == 1
    assert result["clients"] == 6 and len(once.rows) == 2 and len(result["clusters"]["sizes"]) == 3
    assert any(note.startswith("features: TF-IDF of words, 50 features, fitted on the 200") for note in result["notes"])
    assert {name.split("/")[1] for name in once.tensors()} == set("012")


@pytest.mark.thorough
def test_runs_share_rounds_for_equal_clusters_and_tokens(once):
    out = once.folder.parents[2]
    folders = out / "artifacts/rounds"
    before = {path.name for path in folders.iterdir()}
    run(out, *CLUSTERED, f"{FEATURES}.components=49")
    assert {path.name for path in folders.iterdir()} == before
    run(out, *CLUSTERED, "task.max_length=9")  # the same texts, cut
    assert len({path.name for path in folders.iterdir()}) == 2 * len(before)


@pytest.mark.thorough
def test_distances_between_data_sets_and_their_map(tmp_path, capsys):
    small = ["task.max_examples=60", "method.otdd.samples=40", "hardware.num_workers=1", "seed=0"]
    small += [f"paths.output_dir={tmp_path}"]
    assert main(["experiment=fedwad/texts", *small, "method.otdd.features.kind=tfidf"]) == 0
    said = capsys.readouterr().out
    assert "FedWaD, S=10, K=10, t=0.5: with the exact distances, Spearman" in said
    found = (json.loads(path.read_text()) for path in tmp_path.glob("sa/*/*/result.json"))
    exact, federated = sorted(found, key=lambda result: result["solver"])
    assert exact["names"] == ["Cell", "Cloths", "Toys", "Food"] and exact["sizes"] == [40] * 4
    ours, true = np.array(federated["matrix"]), np.array(exact["matrix"])
    assert (ours[np.triu_indices(4, 1)] >= true[np.triu_indices(4, 1)]).all()
    assert main(["compare", "method.name=dataset_distance", f"paths.output_dir={tmp_path}"]) == 0
    assert "exact" in capsys.readouterr().out


def test_coresets_of_texts_classify_them(tmp_path):
    record = run(tmp_path, *CORESET, "method=coreset_knn")
    kept = record.tensors("coreset")
    assert kept["codes"].shape == (16, 6) and kept["clients"].tolist() == [k // 4 for k in range(16)]
    assert 0 < record.result["metrics"]["accuracy"]["ALL"] <= 1


@pytest.mark.thorough
@pytest.mark.real_data
def test_distances_are_between_what_partition_by_names(tmp_path, data_root):
    """Generated texts name no speakers; where a file does, a speaker is a party."""
    natural = ["method=dataset_distance", "partition=natural", "partition.by=speaker", "partition.least=20"]
    small = ["task=erc", "task.max_examples=200", "task.source=local", "task.missing=skip"]
    small += [f"paths.data_dir={data_root}"]
    result = run(tmp_path, *small, *natural).result
    assert result["names"] and all(name.startswith("MELD ") for name in result["names"])
