"""Pre-trained encoders, of files and of the hub: used as they are, or refused in one line that names the file."""

import dataclasses
import json
import struct
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from knot_runner.engine.federated import flat
from knot_runner.engine.loop import initial_model
from knot_runner.models.bert import TextClassifier
from knot_runner.models.network import Network
from knot_runner.models.pretrained import describe_weights, load_pretrained, weight_files
from knot_runner.pipelines.federations.texts import check_weights, load_tokenizer, weights_identity
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.models.test_bert import SHAPE, SPEC

LOCAL = dataclasses.replace(SPEC, weights="tiny")
WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(2)
    encoder = transformers.BertModel(transformers.BertConfig(**SHAPE), add_pooling_layer=False)
    root = tmp_path_factory.mktemp("weights")
    encoder.save_pretrained(root / "tiny")
    return root, encoder.state_dict()


@pytest.fixture
def changed(saved, tmp_path):
    """Write the encoder with its tensors changed by a function; returns the data folder."""

    def write(change=lambda tensors: tensors, **config):
        (tmp_path / "tiny").mkdir()
        tensors = change(load_file(saved[0] / "tiny/model.safetensors"))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "tiny/model.safetensors")
        settings = json.loads((saved[0] / "tiny/config.json").read_text())
        (tmp_path / "tiny/config.json").write_text(json.dumps(settings | config))
        return tmp_path

    return write


def model_with(seed):
    torch.manual_seed(seed)
    return TextClassifier(LOCAL, 500, 5).eval()


def test_load_pretrained_loads_encoder_from_file(saved):
    root, tensors = saved
    model, untouched = model_with(0), model_with(0)
    load_pretrained(model, LOCAL, root)
    assert model.bert.state_dict().keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(model.bert.state_dict()[name], tensor)
    for name, tensor in untouched.head.state_dict().items():
        assert torch.equal(model.head.state_dict()[name], tensor)  # a new head
    batch = {"ids": torch.arange(5, 13)[None], "mask": torch.ones(1, 8, dtype=torch.long)}
    batch["types"] = torch.zeros_like(batch["ids"])
    assert (model(**batch) - untouched(**batch)).abs().max() > 1e-3


def test_first_model_starts_from_pretrained_weights(saved):
    root, tensors = saved
    network = Network(LOCAL, 500, 5)
    layout = flat.layout_of(network)
    starts = [flat.views(flat.initial(network, seed, root)[0], layout.parameters) for seed in (3, 4)]
    for start in starts:
        for name, tensor in tensors.items():
            assert torch.equal(start[f"bert.{name}"], tensor), name
    assert not torch.equal(starts[0]["classifier.weight"], starts[1]["classifier.weight"])
    place = type("Place", (), {"data_root": root, "device": torch.device("cpu")})
    model = initial_model(place, network, None, seed=5).bert.state_dict()
    assert all(torch.equal(model[name], tensor) for name, tensor in tensors.items())
    (note,) = check_weights(network, root)
    assert check_weights(Network(SPEC, 500, 5), root) == []
    assert note.startswith(f"model.weights: {root}/tiny: 37 tensors")
    with refuses():
        check_weights(Network(dataclasses.replace(LOCAL, layers=3), 500, 5), root)


def test_load_pretrained_reads_whole_models_and_old_names(saved, tmp_path):
    torch.manual_seed(2)
    theirs = transformers.BertForSequenceClassification(transformers.BertConfig(**SHAPE))
    theirs.bert.load_state_dict(saved[1] | {k: v for k, v in theirs.bert.state_dict().items() if "pooler" in k})
    theirs.save_pretrained(tmp_path / "tiny")
    file = tmp_path / "tiny/model.safetensors"
    old = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
           for name, tensor in load_file(file).items()}  # fmt: skip
    save_file(old | {"bert.embeddings.position_ids": torch.arange(512)[None]}, file)
    encoder = load_pretrained(model := model_with(0), LOCAL, tmp_path)
    assert all(torch.equal(model.bert.state_dict()[name], tensor) for name, tensor in saved[1].items())
    assert describe_weights(encoder) == (
        f"model.weights: {tmp_path}/tiny: 37 tensors loaded; the head is initialized at random; unused tensors: "
        "classifier.bias, classifier.weight, pooler.dense.bias and 1 more"
    )
    save_file({name: tensor.half() for name, tensor in old.items()}, file)
    half = load_pretrained(model, LOCAL, tmp_path).tensors[WORDS]
    assert half.dtype == torch.float32 and torch.equal(half, saved[1][WORDS].half().float())


def test_load_pretrained_reads_an_encoder_in_parts(saved, tmp_path):
    whole = transformers.BertModel.from_pretrained(saved[0] / "tiny", add_pooling_layer=False)
    whole.save_pretrained(tmp_path / "tiny", max_shard_size="50KB")
    assert len(weight_files(tmp_path / "tiny")) > 1
    load_pretrained(model := model_with(0), LOCAL, tmp_path)
    assert all(torch.equal(model.bert.state_dict()[name], tensor) for name, tensor in saved[1].items())


def without(*names):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def infinite(tensors):
    tensors[WORDS][3, 4] = float("inf")
    return tensors


#: Changes of the tensors and of the config.
UNFIT = {
    "none": (lambda tensors: {"layer.weight": torch.ones(2)}, {}),
    "one less": (without("encoder.layer.1.output.dense.bias"), {}),
    "one more": (lambda tensors: tensors | {"encoder.layer.2.x": torch.ones(2)}, {}),
    "shape": (lambda tensors: tensors | {WORDS: torch.ones(400, 32)}, {}),
    "infinite": (infinite, {}),
    "heads": (without(), {"num_attention_heads": 4}),
    "activation": (without(), {"hidden_act": "relu"}),
    "kind": (without(), {"model_type": "roberta"}),
}


@pytest.mark.parametrize("name", UNFIT)
def test_load_pretrained_refuses_unfit_tensors_and_configs(changed, name):
    change, config = UNFIT[name]
    root = changed(change, **config)
    with refuses():
        load_pretrained(model_with(0), LOCAL, root)


def overlapping(content):
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    first, second = [name for name in header if name.endswith("LayerNorm.bias")][:2]
    header[first]["data_offsets"] = header[second]["data_offsets"]
    made = json.dumps(header).encode()
    return struct.pack("<Q", len(made)) + made + content[8 + size :]


@pytest.mark.parametrize("damage", [
    lambda content: content[:40],  # inside the header
    lambda content: content[:-100],  # inside the last tensor
    lambda content: struct.pack("<Q", 1 << 40) + content[8:], lambda content: content.replace(b'"F32"', b'"F16"', 1),
    lambda content: b"", lambda content: b"\x80\x04N.", overlapping,
])  # fmt: skip
def test_load_pretrained_names_damaged_files(changed, damage):
    root = changed()
    file = root / "tiny/model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=rf"^model.weights: {root}/tiny: cannot be read \(") as caught:
        load_pretrained(model_with(0), LOCAL, root)
    assert "\n" not in str(caught.value)


def test_load_pretrained_refuses_other_encoders(tmp_path):
    config = transformers.DistilBertConfig(vocab_size=500, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    transformers.DistilBertModel(config).save_pretrained(tmp_path / "tiny")
    with refuses():
        load_pretrained(model_with(0), LOCAL, tmp_path)


def test_load_pretrained_refuses_a_folder_without_weights(saved, tmp_path):
    spec = dataclasses.replace(SPEC, weights="nowhere")
    with refuses():
        load_pretrained(model_with(0), spec, tmp_path)
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere/model.safetensors").write_bytes(b"")
    with refuses():
        weight_files(tmp_path / "nowhere")
    (tmp_path / "nowhere/config.json").write_text("[1]")
    with refuses():
        load_pretrained(model_with(0), spec, tmp_path)


HUB = dataclasses.replace(SPEC, weights="hub", vocab="hub", hub_id="someone/tiny", revision="abc123")


@pytest.fixture
def hub_config(monkeypatch):
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: transformers.BertConfig(**SHAPE))


def test_hub_weights_are_of_their_revision(hub_config, monkeypatch):
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


def test_hub_weights_must_be_whole(hub_config, monkeypatch):
    encoder = transformers.BertModel(transformers.BertConfig(**SHAPE), add_pooling_layer=False)

    def refuse(source, **settings):
        raise OSError("We couldn't connect to the hub\nand a second line")

    def loads(missing, unexpected):
        info = {"missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": set()}
        return lambda *_, **__: (encoder, info)

    for load in (loads({"embeddings.LayerNorm.bias"}, set()), loads(set(), {"bert.a"}), refuse):
        monkeypatch.setattr(transformers.BertModel, "from_pretrained", load)
        with refuses():
            load_pretrained(TextClassifier(HUB, 500, 5), HUB, None)


def test_hub_tokenizer_is_of_its_revision(hub_config, monkeypatch):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "food"]
    theirs = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)}, do_lower_case=False)
    asked = []

    def read(repository, revision):
        asked.append((repository, revision))
        return theirs

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", read)
    context = SimpleNamespace(settings=SimpleNamespace(model=HUB))
    assert load_tokenizer(context, None).encode("good Good food").ids == [2, 5, 1, 6, 3]
    assert asked == [("someone/tiny", "abc123")]

    def refuse(*_, **__):
        raise OSError("offline\nand a second line")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with refuses():
        load_tokenizer(context, None)


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
