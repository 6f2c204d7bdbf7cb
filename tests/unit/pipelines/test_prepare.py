"""From texts to a federation: sizes of the parties, random texts, and the texts drawn for scatter plots."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from knot_runner import compose
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.data.load import load_task
from knot_runner.data.tasks import Dataset, Examples
from knot_runner.engine.store import Store
from knot_runner.models.tokens import make_tokenizer
from knot_runner.pipelines.federations.parties import used_examples
from knot_runner.pipelines.federations.texts import TextStore, text_federation
from knot_runner.pipelines.parties.evaluation import balanced_subset
from tests.tiny import TINY

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "##s"]


def random_texts(store, seed):
    words = [*WORDS, *(f"word{chr(97 + i)}" for i in range(26))]
    settings = SimpleNamespace(seed=seed, task=SimpleNamespace(max_length=40))
    texts = TextStore(SimpleNamespace(settings=settings, store=store), make_tokenizer(words))
    return store.get(*texts.put_random(BiasSettings(300, 30, 1, "uniform"))).tensors(), words


def test_random_texts_are_pieces_of_the_vocabulary(tmp_path):
    """Special pieces, too: [UNK], written out, is one token again; 300 texts of 30 of 34 pieces, each in every 34th."""
    found, words = random_texts(Store(tmp_path), 3)
    assert len(found["offsets"]) == 301 and int(found["offsets"].diff().max()) <= 40
    counts = np.bincount(found["ids"].numpy(), minlength=len(words))
    assert counts[[5, 6]] == pytest.approx(300 * 30 / 34, rel=0.25)
    assert counts[:5].min() >= 0.75 * 300 * 30 / 34
    assert (found["labels"] == -1).all()
    other, _ = random_texts(Store(tmp_path / "other"), 4)
    assert other["ids"].tolist() != found["ids"].tolist()


def test_balanced_subset_is_drawn_by_the_seed(tmp_path):
    store, labels = Store(tmp_path), torch.arange(60) % 3
    ids, offsets = torch.arange(120, dtype=torch.int32), torch.arange(0, 121, 2)
    second = torch.arange(60) % 2
    store.put("tokens", "t", {"ids": ids, "offsets": offsets, "second": second, "labels": labels}, {})
    drawn = [store.get(*balanced_subset(("tokens", "t"), 5, seed, store)).tensors() for seed in (0, 1)]
    for found in drawn:
        rows = found["ids"][::2] // 2
        assert len(rows) == 15 and torch.equal(rows, rows.sort().values)
        assert torch.equal(found["labels"], labels[rows.long()]) and torch.equal(found["second"], second[rows.long()])
        assert torch.bincount(found["labels"]).tolist() == [5, 5, 5]
    assert drawn[0]["ids"].tolist() != drawn[1]["ids"].tolist()


def test_text_federation_has_sizes_of_training_parts(tmp_path):
    (job,) = compose([*TINY, "task=sa", "task.max_examples=30"])
    task = load_task(job.settings.task, None)
    train = task.datasets["Cell"].splits["train"]
    task.datasets["Cell"].splits["train"] = Examples(train.texts[:20], None, train.labels[:20])
    context = SimpleNamespace(settings=job.settings, store=Store(tmp_path), data_root=None)
    federation = text_federation(context, task, None)
    sizes = {"Cell": 20, "Cloths": 30, "Toys": 30, "Food": 30, "Grocery": 30}
    assert {party.name: party.size for party in federation.parties} == sizes
    assert [client.name for client in federation.clients] == ["Cell", "Cloths", "Toys"]
    assert (federation.server.name, federation.transfer.name) == ("Food", "Grocery")
    assert federation.random is None and federation.seed == 0 and federation.weights == "scratch"
    labels = federation.clients[2].examples["valid"]
    kept = Store(tmp_path).get(*labels).tensors()["labels"].tolist()
    assert kept == task.datasets["Toys"].splits["valid"].labels.tolist()


def test_used_examples_nests_smaller_limits_in_larger():
    (job,) = compose(["training.distill.max_examples=20"])
    (larger,) = compose(["training.distill.max_examples=30"])
    (other,) = compose(["training.distill.max_examples=20", "seed=1"])
    whole = Examples([str(i) for i in range(50)], None, np.arange(50))
    data = Dataset("pool", "transfer", {"train": whole, "valid": whole})
    few, more, others = (used_examples(data, "train", one.settings).labels for one in (job, larger, other))
    assert len(few) == 20 and set(few) < set(more) and len(more) == 30 and (np.diff(few) > 0).all()
    assert set(others) != set(few)
    assert used_examples(data, "valid", job.settings) is whole
    assert used_examples(Dataset("a", "local", {"train": whole}), "train", job.settings) is whole
