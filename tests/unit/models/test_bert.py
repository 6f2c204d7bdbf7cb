"""The model: the published head equals its plain form, the plain head equals transformers' classifier."""

import dataclasses

import pytest
import torch
import transformers

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.models.bert import TextClassifier

SPEC = ModelSettings("bert", "bert_tiny", "published", "scratch", "train", 500, "", "main", 32, 2, 2, 64, 0.1)

SHAPE = dict(vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    mask = torch.arange(12)[None, :] < torch.tensor([12, 7, 3])[:, None]
    ids = torch.randint(5, 500, (3, 12)) * mask
    return {"ids": ids, "mask": mask, "types": torch.zeros_like(ids)}


def test_published_head_equals_full_layer_at_cls(batch):
    """Computing the [CLS] query alone must change nothing but the cost: value and gradient."""
    model = TextClassifier(SPEC, 500, 5).double().eval()
    output = model.bert(input_ids=batch["ids"], attention_mask=batch["mask"], output_hidden_states=True)
    x = model.head.norm(output.last_hidden_state + output.hidden_states[0])
    whole = model.head.layer(x, src_key_padding_mask=~batch["mask"])[:, 0]
    ours = model.features(**batch)
    torch.testing.assert_close(ours, whole, rtol=1e-10, atol=1e-12)
    (gradient,) = torch.autograd.grad(
        ours.square().sum(), weight := model.bert.embeddings.word_embeddings.weight, retain_graph=True
    )
    (expected,) = torch.autograd.grad(whole.square().sum(), weight)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-12)


def test_plain_head_equals_bert_for_sequence_classification(batch):
    torch.manual_seed(1)
    config = transformers.BertConfig(**SHAPE, num_labels=5)
    theirs = transformers.BertForSequenceClassification(config).eval()
    ours = TextClassifier(dataclasses.replace(SPEC, head="plain"), 500, 5).eval()
    state = {}
    for name, tensor in theirs.state_dict().items():
        state[name.replace("bert.pooler.dense", "head.pooler")] = tensor
    ours.load_state_dict(state)
    expected = theirs(batch["ids"], batch["mask"], batch["types"]).logits
    torch.testing.assert_close(ours(**batch), expected)


def test_text_classifier_ignores_padding(batch):
    model = TextClassifier(SPEC, 500, 5).eval()
    alone = {name: tensor[1:2, :7] for name, tensor in batch.items()}
    torch.testing.assert_close(model(**batch)[1:2], model(**alone), rtol=1e-4, atol=1e-5)


def test_text_classifier_reads_no_value_that_a_gpu_computes(batch):
    with torch.device("meta"):  # whose tensors have none
        model = TextClassifier(SPEC, 500, 5)
    model(**{name: tensor.to("meta") for name, tensor in batch.items()}).sum().backward()


def test_text_classifier_reads_segments(batch):
    torch.manual_seed(1)
    model = TextClassifier(SPEC, 500, 5).eval()
    types = (torch.arange(12)[None, :] >= 3).long() * batch["mask"]
    whole = model.bert(batch["ids"], batch["mask"], types, output_hidden_states=True)
    expected = model.head(whole.last_hidden_state, whole.hidden_states[0], batch["mask"])
    torch.testing.assert_close(model.features(batch["ids"], batch["mask"], types), expected)
    assert (model.features(**batch) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_text_classifier_has_its_dropout_and_heads(dropout):
    model = TextClassifier(dataclasses.replace(SPEC, dropout=dropout), 500, 5)
    actual = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert len(actual) >= 3 + 2 * SPEC.layers and set(actual) == {dropout}
    assert model.head.layer.self_attn.dropout == model.bert.config.attention_probs_dropout_prob == dropout
    assert model.head.layer.self_attn.num_heads == model.bert.config.num_attention_heads == 2
    assert model.head.layer.linear1.out_features == 2048 and not model.head.layer.norm_first  # torch's defaults
    plain = TextClassifier(dataclasses.replace(SPEC, dropout=dropout, head="plain"), 500, 5)
    assert plain.head.dropout.p == dropout
