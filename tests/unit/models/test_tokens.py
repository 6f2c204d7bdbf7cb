"""Tokens: the same ids as transformers' BERT tokenizer, nothing lost in batches, vocabularies that fit."""

import hashlib
import json

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.models.tokens import Encoded, batches, cut_to, encode, learn_vocabulary, make_tokenizer, read_tokenizer
from tests.golden.messages import refuses

TEXTS = ["The food is GOOD, really good!", "Café wasn't bad [SEP] I said so", "utterly unrepeatable"] * 20


@pytest.fixture(scope="module")
def vocabulary():
    return learn_vocabulary(TEXTS, 320)


#: The table of texts that the folders below are compared on.
ALL_TEXTS = [
    "Das große Haus in Köln, das ÄRGERNIS!", "Haus haus HAUS", "ÉCOLE école e\u0301cole", "我爱北京 天安门", "北京a京b",
    "so 😀 good 👩‍👩‍👧", "tab\tbell\x07null\x00end\ufffd", "line\u2028between\u2029lines\x85x",
    "\u200bzero\ufeffwidth\xa0nbsp",
    "a [SEP] b [MASK] [sep] [CLS]", "", "   ", "don't — ‘quoted’ …", "ﬁne Ⅷ İstanbul", "x" * 300, "Haus " * 40,
]  # fmt: skip
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] Haus haus HAUS Das das große Köln koln in Is École ecole École éc ##ole"
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüéßABCDEFÄİ"
PIECES = [
    *WORDS.split(" "), "\u2028", *"我爱北京天安门!,.'[]–😀",
    *LETTERS, *(f"##{letter}" for letter in LETTERS), "##京", "good",
]  # fmt: skip
#: What a folder says about its tokenizer -> the files beside its vocabulary.
FOLDERS = {
    "cased": {"do_lower_case": False},
    "uncased": {"do_lower_case": True},
    "cased without accents": {"do_lower_case": False, "strip_accents": True},
    "uncased with accents": {"do_lower_case": True, "strip_accents": False},
    "Chinese words whole": {"do_lower_case": False, "tokenize_chinese_chars": False},
    "limited length": {"do_lower_case": False, "model_max_length": 20},
    "cut at the left": {"do_lower_case": False, "truncation_side": "left"},
    "an extra token": {"do_lower_case": False, "additional_special_tokens": ["nbsp"]},
    "nothing said": None,
}


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json", "the file vocab.txt"])
@pytest.mark.parametrize("said", FOLDERS)
def test_read_tokenizer_gives_the_ids_of_transformers(said, form, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    if FOLDERS[said] is not None:
        config = {"tokenizer_class": "BertTokenizer"} | FOLDERS[said]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if form == "tokenizer.json":
        transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
        (tmp_path / "vocab.txt").unlink(missing_ok=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = cut_to(read_tokenizer(tmp_path / "vocab.txt" if form == "the file vocab.txt" else tmp_path), 16)
    for text in ALL_TEXTS:
        assert ours.encode(text).ids == theirs(text, truncation=True, max_length=16)["input_ids"], text
    pair = theirs("Haus " * 9, "das große Haus", truncation="longest_first", max_length=16)
    assert ours.encode("Haus " * 9, "das große Haus").ids == pair["input_ids"]
    assert ours.encode("Haus " * 9, "das große Haus").type_ids == pair["token_type_ids"]
    if said == "limited length":
        with refuses():
            cut_to(read_tokenizer(tmp_path), 21)


@pytest.mark.parametrize("end", ["", "\n"])
def test_read_tokenizer_ends_lines_at_newlines_alone(end, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b\u2028", "c\x85", "d\x0b", "e\x1c", "f"]
    (tmp_path / "words.txt").write_text("\n".join(words) + end, encoding="utf-8")
    assert read_tokenizer(tmp_path / "words.txt").get_vocab() == {word: number for number, word in enumerate(words)}


def test_encode_marks_segments_and_cuts_longer_text(vocabulary):
    ours = encode(cut_to(make_tokenizer(vocabulary), 30), ["the food"], ["is good"])
    batch = ours.batch(torch.tensor([0]))
    types = batch["types"][0].tolist()
    first = types.index(1)
    assert set(types[:first]) == {0} and set(types[first:]) == {1}
    separator = vocabulary.index("[SEP]")
    assert batch["ids"][0][first - 1] == batch["ids"][0][-1] == separator
    ours = encode(cut_to(make_tokenizer(vocabulary), 9), ["the food is good really good"], ["the food good"])
    types = ours.batch(torch.tensor([0]))["types"][0].tolist()
    assert types == [0] * 5 + [1] * 4  # [CLS], three words and [SEP]; all three words and [SEP]
    alone = encode(cut_to(make_tokenizer(vocabulary), 5), ["the food is good really good"])
    assert alone.lengths.tolist() == [5] and alone.second.tolist() == [5]
    with refuses():
        encode(cut_to(make_tokenizer(vocabulary), 30), ["漢字 仮名 交じり 文 漢字"] * 3)


def test_learn_vocabulary_puts_letters_before_frequent_pieces_in_every_process(vocabulary):
    assert hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()[:16] == "caad45a0e4e031a9"
    assert vocabulary[0] == "[PAD]" and "food" in vocabulary and len(vocabulary) <= 320
    words = learn_vocabulary(["aab aab aab aab abab abab", "ba ba ba"], 600)
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [word for word in words[5:] if len(word.removeprefix("##")) == 1]
    assert words[5 : 5 + len(letters)] == sorted(letters) and {"z", "##z", "a", "##7", "~"} <= set(letters)
    longer = words[5 + len(letters) :]
    assert longer[:2] == ["aab", "ba"] and set(longer) == {"aab", "ba", "abab"}
    assert learn_vocabulary(["aab aab aab aab abab abab", "ba ba ba"], 5 + len(letters) + 1)[-1] == "aab"


@pytest.mark.parametrize("files", [
    {}, {"vocab.txt": "the\nfood\n"}, {"vocab.txt": "[UNK]\n[CLS]\n[SEP]\n[PAD]\n"}, {"tokenizer.json": "{}"},
    {"tokenizer.json": "{}", "tokenizer_config.json": "{"},
])  # fmt: skip
def test_read_tokenizer_refuses(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with refuses():
        read_tokenizer(tmp_path)
    with refuses():
        read_tokenizer("bert-base-uncased")  # it would be one of the hub


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 17), st.booleans())
def test_batches_have_every_row_once_and_texts_of_similar_length(lengths, size, shuffled):
    lengths = torch.tensor(lengths)
    generator = torch.Generator().manual_seed(0) if shuffled else None
    cut = batches(lengths, size, generator)
    assert sorted(torch.cat(cut).tolist()) == list(range(len(lengths)))
    assert max(len(batch) for batch in cut) <= size
    lengths = torch.randint(5, 200, (640,), generator=torch.Generator().manual_seed(0))
    cut = batches(lengths, 16, torch.Generator().manual_seed(1))
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in cut)
    assert padded < 1.1 * int(lengths.sum())  # random batches pad to about twice the tokens


def test_batch_is_padded_by_hand():
    texts = Encoded(torch.arange(1, 10, dtype=torch.int32), torch.tensor([0, 2, 6, 9]), torch.tensor([2, 3, 1]))
    batch = texts.batch(torch.tensor([0, 1, 2]))
    assert batch["ids"].tolist() == [[1, 2, 0, 0], [3, 4, 5, 6], [7, 8, 9, 0]]
    assert batch["mask"].tolist() == [[True, True, False, False], [True] * 4, [True, True, True, False]]
    assert batch["types"].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0]]
    assert texts.lengths.tolist() == [2, 4, 3] and len(texts) == 3


def test_batches_are_drawn_for_training_alone():
    lengths = torch.arange(1, 101)

    def drawn(seed):
        return [batch.tolist() for batch in batches(lengths, 10, torch.Generator().manual_seed(seed))]

    first = drawn(0)
    torch.rand(3)  # of torch's own randomness nothing depends
    assert first == drawn(0) != drawn(1)
    assert first != sorted(first)  # one pool, sorted, then its batches in a drawn order
    assert all(batch == sorted(batch) for batch in first)
    few = [[b.tolist() for b in batches(torch.ones(640), 10, torch.Generator().manual_seed(s))] for s in (0, 1, 0)]
    assert few[0] == few[2] and {tuple(sorted(batch)) for batch in few[0]} != {tuple(sorted(batch)) for batch in few[1]}
    assert [batch.tolist() for batch in batches(torch.tensor([3, 9, 5, 9]), 2, None)] == [[1, 3], [2, 0]]
