"""Weights and vocabulary from the hub, the transport faked: what is asked for, how a failure reads."""

import dataclasses

import pytest
import torch
import transformers

from knot_runner.models.bert import TextClassifier
from knot_runner.models.pretrained import load_pretrained
from knot_runner.pipelines.federations.texts import load_tokenizer, weights_identity
from tests.golden.messages import refuses
from tests.unit.models.test_bert import SHAPE, SPEC

HUB = dataclasses.replace(SPEC, weights="hub", vocab="hub", hub_id="someone/tiny", revision="abc123")


@pytest.fixture(autouse=True)
def config(monkeypatch):
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: transformers.BertConfig(**SHAPE))


def test_hub_weights_are_of_their_revision(monkeypatch):
    asked = {}
    torch.manual_seed(3)
    encoder = transformers.BertModel(transformers.BertConfig(**SHAPE), add_pooling_layer=False)

    def download(source, **settings):
        asked.update(settings, source=source)
        return encoder, {"missing_keys": set(), "unexpected_keys": {"cls.predictions.bias"}, "mismatched_keys": set()}

    monkeypatch.setattr(transformers.BertModel, "from_pretrained", download)
    model = TextClassifier(HUB, 500, 5)
    load_pretrained(model, HUB, None)
    assert (asked["source"], asked["revision"]) == ("someone/tiny", "abc123")
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(model.bert.state_dict()[name], tensor)


@pytest.mark.parametrize("info", [
    {"missing_keys": {"embeddings.LayerNorm.bias"}, "unexpected_keys": set()},
    {"missing_keys": set(), "unexpected_keys": {"bert.a"}},
])  # fmt: skip
def test_hub_weights_must_be_whole(monkeypatch, info):
    encoder = transformers.BertModel(transformers.BertConfig(**SHAPE), add_pooling_layer=False)
    monkeypatch.setattr(
        transformers.BertModel, "from_pretrained", lambda *_, **__: (encoder, info | {"mismatched_keys": set()})
    )
    with refuses():
        load_pretrained(TextClassifier(HUB, 500, 5), HUB, None)


def test_hub_weights_error_is_one_line(monkeypatch):
    def refuse(source, **settings):
        raise OSError("We couldn't connect to the hub\nand a second line")

    monkeypatch.setattr(transformers.BertModel, "from_pretrained", refuse)
    with refuses():
        load_pretrained(TextClassifier(HUB, 500, 5), HUB, None)


def test_hub_tokenizer_is_of_its_revision(monkeypatch, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "food"]
    theirs = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}, do_lower_case=False)
    asked = []

    def read(repository, revision):
        asked.append((repository, revision))
        return theirs

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", read)
    assert load_tokenizer(HUB, None, None).encode("good Good food").ids == [2, 5, 1, 6, 3]
    assert asked == [("someone/tiny", "abc123")]

    def refuse(*_, **__):
        raise OSError("offline\nand a second line")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with refuses():
        load_tokenizer(HUB, None, None)


def test_weights_identity_knows_the_weights(tmp_path):
    assert weights_identity(HUB, None) == "someone/tiny@abc123"
    assert weights_identity(SPEC, None) == "scratch"
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    (folder / "config.json").write_text("{}")
    local = dataclasses.replace(SPEC, weights="w")
    first = weights_identity(local, tmp_path)
    (folder / "model.safetensors").write_bytes(b"two")
    assert weights_identity(local, tmp_path) != first
