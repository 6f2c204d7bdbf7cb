"""Tokens: the same ids as transformers' BERT tokenizer, nothing lost in batches, vocabularies that fit."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer

from knot_runner.errors import UserError
from knot_runner.models.tokens import batches, encode, learn_vocabulary, make_tokenizer, read_vocabulary

TEXTS = ["The food is GOOD, really good!", "Café wasn't bad [SEP] I said so", "utterly unrepeatable"] * 20


@pytest.fixture(scope="module")
def vocabulary():
    return learn_vocabulary(TEXTS, 320)


def test_same_ids_as_transformers(vocabulary, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    theirs = BertTokenizer(vocab=str(path))
    ours = encode(make_tokenizer(read_vocabulary(tmp_path), 12), TEXTS[:3])
    for row, text in enumerate(TEXTS[:3]):
        expected = theirs(text, truncation=True, max_length=12)["input_ids"]
        assert ours.batch(torch.tensor([row]))["ids"][0].tolist() == expected


def test_pairs_have_segments(vocabulary):
    ours = encode(make_tokenizer(vocabulary, 30), ["the food"], ["is good"])
    batch = ours.batch(torch.tensor([0]))
    types = batch["types"][0].tolist()
    first = types.index(1)
    assert set(types[:first]) == {0} and set(types[first:]) == {1}
    separator = vocabulary.index("[SEP]")
    assert batch["ids"][0][first - 1] == batch["ids"][0][-1] == separator


def test_a_vocabulary_that_does_not_fit_is_refused(vocabulary):
    with pytest.raises(UserError, match=r"model.vocab: \d+% of the tokens are \[UNK\]"):
        encode(make_tokenizer(vocabulary, 30), ["漢字 仮名 交じり 文 漢字"] * 3)


def test_learning_is_repeatable_in_another_process(vocabulary):
    code = f"from knot_runner.models.tokens import *; print(learn_vocabulary({TEXTS!r}, 320))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(vocabulary)
    assert vocabulary[0] == "[PAD]" and "food" in vocabulary and len(vocabulary) <= 320


def test_no_vocabulary_file(tmp_path):
    with pytest.raises(UserError, match=r"model.vocab: .*vocab.txt: cannot be read"):
        read_vocabulary(tmp_path)
    (tmp_path / "vocab.txt").write_text("the\nfood\n")
    with pytest.raises(UserError, match="is no BERT vocabulary"):
        read_vocabulary(tmp_path)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 17), st.booleans())
def test_every_row_is_in_one_batch(lengths, size, shuffled):
    lengths = torch.tensor(lengths)
    generator = torch.Generator().manual_seed(0) if shuffled else None
    cut = batches(lengths, size, generator)
    assert sorted(torch.cat(cut).tolist()) == list(range(len(lengths)))
    assert max(len(batch) for batch in cut) <= size


def test_batches_hold_texts_of_like_length():
    lengths = torch.randint(5, 200, (640,), generator=torch.Generator().manual_seed(0))
    cut = batches(lengths, 16, torch.Generator().manual_seed(1))
    padded = sum(len(b) * int(lengths[b].max()) for b in cut)
    assert padded < 1.1 * int(lengths.sum())  # random batches pad to about twice the tokens
