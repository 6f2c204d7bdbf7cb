"""BERT text classifiers with the head of KNOT's published code, or with BERT's usual head (KNOT Fig. 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knot_runner.config.settings.groups import ModelSettings


class PublishedHead(nn.Module):
    """The head of KNOT's published code: a LayerNorm, followed by a post-norm Transformer encoder layer.

    The input of the LayerNorm is the sum of the last hidden state and the embedding output. To save time, only the
    output at [CLS] is computed. It equals the output of ``nn.TransformerEncoderLayer`` at [CLS].
    """

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.layer = nn.TransformerEncoderLayer(hidden, nhead=2, dropout=dropout, batch_first=True)

    def forward(self, last: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        """Return the features, shape [B, H].

        Args:
            last: The last hidden state, shape [B, L, H].
            embedded: The embedding output, shape [B, L, H].
            mask: True for a token and False for padding, shape [B, L].
        """
        x = self.norm(last + embedded)
        layer = self.layer
        cls = x[:, :1]
        # With queries only at [CLS], the whole model takes half the time. The equality with the full layer is tested.
        attended, _ = layer.self_attn(cls, x, x, key_padding_mask=~mask, need_weights=False)
        cls = layer.norm1(cls + layer.dropout1(attended))
        forward = layer.linear2(layer.dropout(layer.activation(layer.linear1(cls))))
        return layer.norm2(cls + layer.dropout2(forward))[:, 0]


class PlainHead(nn.Module):
    """The head of BertForSequenceClassification: a linear layer with tanh at [CLS], followed by dropout."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, last: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        """Return the features, shape [B, H], from the last hidden state ``last``, shape [B, L, H].

        The arguments ``embedded`` and ``mask`` are not used.
        """
        return self.dropout(torch.tanh(self.pooler(last[:, 0])))


class TextClassifier(nn.Module):
    """A text classifier that consists of a BERT encoder, a head and a linear layer. All parameters are trained."""

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
            attn_implementation="sdpa",
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        head = PublishedHead if spec.head == "published" else PlainHead
        self.head = head(spec.hidden, spec.dropout)
        self.classifier = nn.Linear(spec.hidden, classes)

    def features(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return the inputs of the last linear layer, shape [B, H].

        Args:
            ids: The token ids, shape [B, L].
            mask: True for a token and False for padding, shape [B, L].
            types: The segment ids, shape [B, L].
        """
        tokens = mask.bool()
        # for a mask with two dimensions, transformers would check its values and so wait for the device
        attended = tokens[:, None, None]
        output = self.bert(input_ids=ids, attention_mask=attended, token_type_ids=types, output_hidden_states=True)
        return self.head(output.last_hidden_state, output.hidden_states[0], tokens)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return the logits, shape [B, C]. The arguments are the same as for :meth:`features`."""
        return self.classifier(self.features(ids, mask, types))
