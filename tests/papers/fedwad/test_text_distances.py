"""Runs that compare texts, through the command line: distances, clusters, coresets, and what is shown of them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import ot
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score
from tokenizers import BertWordPieceTokenizer

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.data.pools import TextPool
from knot_runner.data.tasks import Dataset, Examples
from knot_runner.engine.federated.flat import initial_network
from knot_runner.engine.seeds import keyed
from knot_runner.papers.fedwad.matrix import clients_data, inspect_matrix
from knot_runner.pipelines.clustered import compute_distances, labeled
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.features import texts as text_features
from knot_runner.pipelines.federations.texts import load_tokenizer
from tests import runs
from tests.golden.messages import refuses
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


def test_clustering_recovers_planted_groups_from_words(once):
    result = once.result
    groups = json.loads((once.folder / "partition.json").read_text())["groups"]
    assert result["clusters"]["ari"] == adjusted_rand_score(groups, result["clusters"]["labels"]) == 1
    assert result["clients"] == 6 and len(once.rows) == 2 and len(result["clusters"]["sizes"]) == 3
    assert any(note.startswith("features: TF-IDF of words, 50 features, fitted on the 200") for note in result["notes"])
    assert {name.split("/")[1] for name in once.tensors()} == set("012")


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


@pytest.mark.real_data
def test_distances_are_between_what_partition_by_names(tmp_path, data_root):
    """Generated texts name no speakers; where a file does, a speaker is a party."""
    natural = ["method=dataset_distance", "partition=natural", "partition.by=speaker", "partition.least=20"]
    small = ["task=erc", "task.max_examples=200", "task.source=local", "task.missing=skip"]
    small += [f"paths.data_dir={data_root}"]
    result = run(tmp_path, *small, *natural).result
    assert result["names"] and all(name.startswith("MELD ") for name in result["names"])


#: Four data sets of 60 generated reviews, a narrow model.
REVIEWS = [
    "task=sa", "method=dataset_distance", "task.max_examples=60", "model.hidden=16", "model.layers=1",
    "model.intermediate=32", "model.vocab_size=600", "method.otdd.features.components=8", "hardware.num_workers=1",
]  # fmt: skip


def context(out: Path, *overrides: str) -> RunContext:
    (job,), _ = compose_all([*REVIEWS, f"paths.output_dir={out}", *overrides])
    return RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, lambda _: None)


def space_of(run: RunContext, pool: TextPool) -> text_features.TextSpace:
    return text_features.text_space(run, run.method.otdd.features, pool)


def read(run: RunContext) -> TextPool:
    return clients_data(run)[0]


def with_transfer(pool: TextPool, texts: list[str]) -> TextPool:
    """``pool`` with other texts in its transfer set."""
    examples = Examples(texts, None, np.full(len(texts), -1))
    data = {**pool.whole.datasets, "Grocery": Dataset("Grocery", "transfer", {"train": examples, "valid": examples})}
    return dataclasses.replace(pool, whole=dataclasses.replace(pool.whole, datasets=data))


@pytest.mark.parametrize(("fitted_on", "name"), [("transfer", "Grocery"), ("global", "Food"), ("clients", None)])
def test_word_features_match_scikit_learns_tfidf_svd(tmp_path, fitted_on, name):
    run = context(tmp_path, f"method.otdd.features.fitted_on={fitted_on}", "method.otdd.features.words=40", "seed=3")
    pool = read(run)
    texts = pool.whole.datasets[name].splits["train"].texts if name else pool.train.texts
    counter = TfidfVectorizer(max_features=40)
    fitted = counter.fit_transform(texts)
    svd = TruncatedSVD(8, random_state=keyed(3, "features") % 2**32).fit(fitted)
    raw = svd.transform(fitted)
    expected = svd.transform(counter.transform(pool.test.texts)) - raw.mean(0)
    expected /= np.sqrt(raw.var(0).mean())
    found = space_of(run, pool)
    np.testing.assert_allclose(found.points(pool.test), expected, rtol=1e-9, atol=1e-12)
    assert found.shape == (8,) and found.points(pool.test).dtype == np.float64
    other = space_of(dataclasses.replace(run, settings=dataclasses.replace(run.settings, seed=4)), pool)
    assert not np.array_equal(found.points(pool.test), other.points(pool.test))


def test_plain_texts_join_contexts_and_second_sentences():
    pairs = Examples(["one [SEP] two", "three"], ["four", "five"], np.zeros(2, int))
    assert text_features.plain_texts(pairs) == ["one two four", "three five"]
    assert text_features.plain_texts(Examples(["one"], None, np.zeros(1, int))) == ["one "]


def test_cls_features_match_the_initial_encoder(tmp_path):
    """The last hidden state at [CLS], one text after another."""
    run = context(tmp_path, "method.otdd.features.kind=cls")
    pool = read(run)
    vocabulary = load_tokenizer(run, pool.whole).get_vocab()
    encoder = initial_network(text_features.Network(run.settings.model, len(vocabulary), 5), 0, None).bert.eval()
    tokenizer = BertWordPieceTokenizer(vocab=vocabulary, lowercase=True)
    tokenizer.enable_truncation(run.settings.task.max_length)

    @torch.no_grad()
    def cls_of(texts):
        ids = [torch.tensor([tokenizer.encode(text).ids]) for text in texts]
        return torch.cat([encoder(input_ids=one).last_hidden_state[:, 0] for one in ids]).double().numpy()

    raw = cls_of(pool.whole.datasets["Grocery"].splits["train"].texts)
    expected, scale = cls_of(pool.test.texts) - raw.mean(0), np.sqrt(raw.var(0).mean())
    # the scale is small beside the vectors themselves, so that float32's rounding shows
    rounding = 4 * np.finfo(np.float32).eps * np.abs(raw).max() / scale
    np.testing.assert_allclose(space_of(run, pool).points(pool.test), expected / scale, atol=rounding)


def test_distances_of_texts_are_pots(tmp_path):
    """Exact OTDD between two data sets: points, class means and roots of the covariances' diagonals, by hand."""
    words = ("solver=exact", "part=diagonal", "features.components=3")
    run = context(tmp_path, *(f"method.otdd.{word}" for word in words))
    pool, partition = clients_data(run)
    assert partition.names == ["Cell", "Cloths", "Toys", "Food"]
    sets = labeled(run, run.method.otdd, pool, partition.train, 0)
    found = compute_distances(run, sets, run.method.otdd, pool.digest).tensors()["matrix"].numpy()
    points = space_of(run, pool).points(pool.train)
    augmented = []
    for rows in partition.train[:2]:
        own, labels = points[rows], pool.train.labels[rows]
        parts = []
        for x, y in zip(own, labels, strict=True):
            alike = own[labels == y]
            spread = alike.var(0, ddof=1) if len(alike) > 1 else np.zeros(3)
            parts.append(np.concatenate([x, alike.mean(0), np.sqrt(spread + 1e-6)]))
        augmented.append(np.stack(parts))
    cost = ot.dist(*augmented)
    assert found[0, 1] == pytest.approx(ot.emd2([], [], cost, numItermax=10**6), rel=1e-9)


@pytest.mark.parametrize(("texts", "words"), [
    (["all the same words"] * 30, ()), (["a b"] * 30, ()), (["good phone", "bad food"], ()),
    (["one two three four five six seven eight nine ten"] * 9, ()),
    (["the same words"] * 40, ("method.otdd.features.kind=cls",)),
], ids=range(5))  # fmt: skip
def test_text_features_refuse_unfittable_texts(tmp_path, texts, words):
    run = context(tmp_path, *words)
    with refuses():
        space_of(run, with_transfer(read(run), texts))


def test_text_features_refuse_components_beyond_memory(tmp_path):
    with refuses():
        runs.run(tmp_path, *REVIEWS[:-2], "method.otdd.features.components=9999999")


def test_feature_notes_name_the_fitted_texts(tmp_path):
    run = context(tmp_path)
    pool, spec = read(run), run.method.otdd.features
    assert pool.notes[-1] in inspect_matrix(run).notes
    assert pool.notes[-1].endswith("fitted on the 60 training texts of Grocery, which belong to no client")
    (clients,) = text_features.feature_notes(dataclasses.replace(spec, fitted_on="clients"), pool)
    assert "the 240 training texts of all clients, which leave the clients for this" in clients
    (server,) = text_features.feature_notes(dataclasses.replace(spec, fitted_on="global", kind="cls"), pool)
    assert server.startswith("features: [CLS] of the clients' initial model")
    assert "of Food, which belong to the server" in server
