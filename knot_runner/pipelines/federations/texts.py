"""Conversion of a task's texts to a federation. The texts are encoded with one vocabulary and put into the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.config.strict import digest
from knot_runner.data.checksums import DataFolder
from knot_runner.data.tasks import Dataset, Examples, PartyTask
from knot_runner.engine.examples import TextData
from knot_runner.engine.requests import Ref
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.tensor_file import Tensors
from knot_runner.methods.party import PartyFederation
from knot_runner.models.bert import TextClassifier
from knot_runner.models.network import Network
from knot_runner.models.pretrained import describe_weights, local_path, read_encoder, weight_files
from knot_runner.models.tokens import (
    TOKENIZER_FILES,
    Encoded,
    cut_to,
    encode,
    learn_vocabulary,
    make_tokenizer,
    read_tokenizer,
    vocabulary_size,
)
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.pipelines.federations.parties import party_federation, stages_of
from knot_runner.provenance import Opened
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Minimum number of texts in a training or validation split. With fewer texts, the run would fail later.
MIN_ROWS = 2


def text_federation(context: RunContext, task: PartyTask, bias: BiasSettings | None) -> PartyFederation:
    """Encode the texts of every data set and put them into the store; return the federation.

    If ``bias`` is given, also store random texts to measure the models' probability biases.

    Raises:
        UserError: The texts do not fit the vocabulary or the models.
    """
    settings = context.settings
    texts = TextStore.of(context, task)
    model = as_kind(settings.model, ModelSettings)
    stages = stages_of(settings)

    def save(data: Dataset, split: str, examples: Examples) -> Ref:
        if len(examples.texts) < MIN_ROWS and split != "test":
            raise UserError(
                f"expected {MIN_ROWS} or more usable {split} texts, got {len(examples.texts)}",
                f"task.datasets.{data.name}",
            )
        # test texts, random texts and probes always have task.max_length
        return texts.put(examples, None if split == "test" else stages[data.role].max_length)

    network = Network(model, vocabulary_size(texts.tokenizer), len(task.labels.names))
    return party_federation(
        settings,
        task,
        save,
        network,
        random=texts.put_random(bias) if bias else None,
        weights=weights_identity(model, context.data_root),
        notes=check_weights(network, context.data_root),
    )


def load_tokenizer(context: RunContext, task: PartyTask) -> Tokenizer:
    """Return the tokenizer that ``model.vocab`` selects.

    The tokenizer is either learned on all training texts, or downloaded from the hub, or read from local files.
    """
    model = as_kind(context.settings.model, ModelSettings)
    if model.vocab == "train":
        return make_tokenizer(learn_vocabulary(_train_texts(task), model.vocab_size))
    if model.vocab == "hub":
        return read_tokenizer(model.hub_id, model.revision)
    return read_tokenizer(local_path(model.vocab, context.data_root))


def _train_texts(task: PartyTask) -> list[str]:
    """Return all training texts. A text that several parties have (a student and its teachers) counts once."""
    trains = [as_kind(dataset.splits["train"], Examples) for dataset in task.datasets.values()]
    if all(train.texts is trains[0].texts for train in trains) and task.read:
        trains = trains[:1]
    return [text for train in trains for text in [*train.texts, *(train.pairs or [])]]


def weights_identity(model: ModelSettings, data_root: Path | None) -> str:
    """Return a string that identifies an encoder's initial weights. Keys of artifacts depend on this string."""
    if model.weights == "scratch":
        return "scratch"
    if model.weights == "hub":
        return f"{model.hub_id}@{model.revision}"
    return digest(list(map(sha256, weight_files(local_path(model.weights, data_root)))))


def check_weights(network: Network, data_root: Path | None) -> list[str]:
    """Check, before training, that the pretrained encoder fits ``network``; return notes on the encoder.

    Raises:
        UserError: The encoder does not fit the network.
    """
    spec = as_kind(network.spec, ModelSettings)
    if spec.weights == "scratch":
        return []
    with torch.device("meta"):
        model = TextClassifier(spec, as_kind(network.inputs, int), network.classes)
    return [describe_weights(read_encoder(spec, model.bert.config, data_root))]


def model_files(context: RunContext) -> list[Opened]:
    """Return the local vocabulary and weight files of the run's text model; [] for image models."""
    model = context.settings.model
    data_root = context.data_root
    if not isinstance(model, ModelSettings):
        return []
    paths: list[Path] = []
    if model.vocab not in ("train", "hub"):
        source = local_path(model.vocab, data_root)
        paths = [source]
        if source.name == "vocab.txt":
            source = source.parent
        if source.is_dir():
            paths = [source / name for name in TOKENIZER_FILES if (source / name).is_file()]
    if model.weights not in ("scratch", "hub"):
        source = local_path(model.weights, data_root)
        paths += [source / "config.json", *weight_files(source)]
    data = DataFolder(data_root or Path(), {})
    for path in paths:
        data.check(path)
    return data.files


@dataclass(frozen=True)
class TextStore:
    """The texts of a run, encoded by ``tokenizer`` and cached in the run's store."""

    context: RunContext
    tokenizer: Tokenizer

    @staticmethod
    def of(context: RunContext, task: PartyTask) -> TextStore:
        """Return the text store that uses the tokenizer of the run's model."""
        return TextStore(context, load_tokenizer(context, task))

    def put(self, examples: Examples, max_length: int | None = None) -> Ref:
        """Encode ``examples``, store the tokens, and return the reference to the stored tokens.

        Each example is truncated to ``max_length`` tokens. With None, ``task.max_length`` is used.
        """
        return self._put({"texts": examples.digest}, lambda: examples, max_length)

    def put_random(self, bias: BiasSettings) -> Ref:
        """Encode and store random texts; return the reference to the stored tokens.

        There are ``bias.texts`` texts, each of ``bias.tokens`` word pieces. The pieces are drawn uniformly, with
        replacement, from the whole vocabulary, and joined by spaces (KNOT App. D.1).
        """
        seed = self.context.settings.seed

        def draw() -> Examples:
            size = (bias.texts, bias.tokens)
            drawn = numpy_generator(seed, "random texts").integers(vocabulary_size(self.tokenizer), size=size)
            texts = []
            for row in drawn.tolist():
                texts.append(" ".join(self.tokenizer.id_to_token(i) or "" for i in row))
            return unlabeled_texts(texts)

        return self._put({"random": [bias.texts, bias.tokens], "seed": seed}, draw)

    def read(self, ref: Ref) -> TextData:
        """Return the encoded texts at ``ref`` in the format that engines read."""
        tensors = self.context.store.get(*ref).tensors()
        return TextData(labels=tensors.pop("labels"), texts=Encoded(**tensors))

    def _put(self, content: Facts, make: Callable[[], Examples], max_length: int | None = None) -> Ref:
        """Encode the examples that ``make`` returns, unless the store has texts with this ``content``."""
        length = max_length or self.context.settings.task.max_length

        def encoded() -> tuple[Tensors, Facts]:
            examples = make()
            tokens = encode(cut_to(self.tokenizer, length), examples.texts, examples.pairs)
            facts = {"texts": len(tokens), "tokens": len(tokens.ids)}
            return tokens.tensors() | {"labels": torch.from_numpy(examples.labels)}, facts

        key = digest({**content, "words": digest(self.tokenizer.to_str()), "max_length": length})
        self.context.store.find_or_put("tokens", key, encoded)
        return ("tokens", key)


def unlabeled_texts(texts: list[str]) -> Examples:
    """Return ``texts`` as examples without labels."""
    return Examples(texts, None, np.full(len(texts), UNLABELED, dtype=np.int64))
