"""BERT-tiny with KNOT's published head, or with the plain classification head (knot.md 1.5, paper Fig. 4)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knot_runner.errors import UserError
from knot_runner.settings import ModelSettings


class PublishedHead(nn.Module):
    """LayerNorm of (last hidden + embedding output), one post-norm Transformer encoder layer, read at [CLS].

    Only the [CLS] position is read, so the layer's query and feed-forward are computed for that position alone: the
    same numbers as ``nn.TransformerEncoderLayer`` (tested), at about half the cost of the whole model.
    """

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.layer = nn.TransformerEncoderLayer(hidden, nhead=2, dropout=dropout, batch_first=True)

    def forward(self, last: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        """``last``, ``embedded`` [B, L, H], ``mask`` bool [B, L] (True = a token) -> features [B, H]."""
        x, layer = self.norm(last + embedded), self.layer
        cls = x[:, :1]
        attended, _ = layer.self_attn(cls, x, x, key_padding_mask=~mask, need_weights=False)
        cls = layer.norm1(cls + layer.dropout1(attended))
        forward = layer.linear2(layer.dropout(layer.activation(layer.linear1(cls))))
        return layer.norm2(cls + layer.dropout2(forward))[:, 0]


class PlainHead(nn.Module):
    """BertForSequenceClassification's: tanh pooler at [CLS], then dropout."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, last: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.pooler(last[:, 0])))


class TextClassifier(nn.Module):
    """Encoder, head, linear classifier. All parameters train."""

    def __init__(self, spec: ModelSettings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=spec.hidden,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            intermediate_size=spec.intermediate,
            hidden_dropout_prob=spec.dropout,
            attention_probs_dropout_prob=spec.dropout,
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        head = PublishedHead if spec.head == "published" else PlainHead
        self.head = head(spec.hidden, spec.dropout)
        self.classifier = nn.Linear(spec.hidden, classes)

    def features(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """[B, L] token ids, mask, segment -> what the classifier reads, [B, H]."""
        output = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
        return self.head(output.last_hidden_state, output.hidden_states[0], mask.bool())

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Logits [B, C]."""
        return self.classifier(self.features(ids, mask, types))


def party_model(spec: ModelSettings, party: str) -> ModelSettings:
    """``spec`` with the keys that ``per_party`` changes for this party (distillation allows unlike models)."""
    return dataclasses.replace(spec, per_party={}, **spec.per_party.get(party, {}))


def load_pretrained(model: TextClassifier, spec: ModelSettings, data_root: Path | None) -> None:
    """Put the pre-trained encoder that ``spec.weights`` names (hub, or a local folder) into ``model``, in place.

    Raises :class:`UserError` naming ``model.weights`` when it is not there or of another shape.
    """
    from transformers import BertModel

    source, extra = _weights_source(spec, data_root)
    try:
        encoder = BertModel.from_pretrained(source, add_pooling_layer=False, **extra)
    except (OSError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise UserError(f"model.weights: {source}: {reason}") from None
    ours, theirs = model.bert.state_dict(), encoder.state_dict()
    wrong = [name for name in ours if name not in theirs or ours[name].shape != theirs[name].shape]
    if wrong:
        raise UserError(f"model.weights: {source}: {len(wrong)} tensors of another shape, first {wrong[0]}")
    model.bert.load_state_dict(theirs, strict=False)


def _weights_source(spec: ModelSettings, data_root: Path | None) -> tuple[str, dict[str, Any]]:
    if spec.weights == "hub":
        return spec.hub_id, {"revision": spec.revision}
    folder = local_path(spec.weights, data_root)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise UserError(f"model.weights: {folder}: a folder with config.json and model.safetensors is right")
    return os.fspath(folder), {"local_files_only": True}


def local_path(name: str, data_root: Path | None) -> Path:
    """``name`` as a path, relative ones from ``paths.data``."""
    path = Path(name).expanduser()
    return path if path.is_absolute() or data_root is None else data_root / path
