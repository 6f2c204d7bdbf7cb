"""Conversion of a task's texts to a federation: one vocabulary, cached encoded texts, and a network per party."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.config.settings.run import Settings
from knot_runner.config.strict import digest
from knot_runner.data.checksums import DataFolder
from knot_runner.data.tasks import Examples, PartyTask
from knot_runner.engine.examples import TextData
from knot_runner.engine.requests import Ref
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.store import Store
from knot_runner.methods.party import PartyFederation
from knot_runner.models.bert import TextClassifier, party_model
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
from knot_runner.pipelines.context import as_kind
from knot_runner.pipelines.federations.parties import party_federation, stages_of, used_examples
from knot_runner.provenance import Opened
from knot_runner.util.errors import UserError
from knot_runner.util.files import sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Below this many texts nothing can be learned, and the run would fail later with a less clear message.
MIN_ROWS = 2


def text_federation(
    settings: Settings, task: PartyTask, store: Store, data_root: Path | None, bias: BiasSettings | None
) -> PartyFederation:
    """Encode every split of every data set (cached); return the federation.

    ``bias``: also create random texts to measure probability biases.

    Raises:
        UserError: The texts do not fit the vocabulary or the models.
    """
    model, words = as_kind(settings.model, ModelSettings), settings.task
    tokenizer = load_tokenizer(model, task, data_root)
    # test texts, random texts and probes always have task.max_length
    lengths = {role: stage.max_length or words.max_length for role, stage in stages_of(settings).items()}
    tokens = {}
    for dataset in task.datasets.values():
        for split in dataset.splits:
            examples = as_kind(used_examples(dataset, split, settings), Examples)
            if len(examples.texts) < MIN_ROWS and split != "test":
                raise UserError(f"{split} has {len(examples.texts)} usable texts", f"task.datasets.{dataset.name}")
            length = words.max_length if split == "test" else lengths[dataset.role]
            tokens[dataset.name, split] = _encoded(examples, tokenizer, length, store)
    networks = _networks(model, task, vocabulary_size(tokenizer))
    random = _random_texts(bias, tokenizer, words.max_length, settings.seed, store) if bias else None
    weights, notes = weights_identity(model, data_root), _check_weights(networks.values(), data_root)
    return party_federation(settings, task, tokens, networks, notes, weights=weights, random=random)


def load_tokenizer(model: ModelSettings, task: PartyTask, data_root: Path | None) -> Tokenizer:
    """Return the tokenizer that ``model.vocab`` selects: learned on all training texts, from the hub, or local."""
    if model.vocab == "train":
        return make_tokenizer(learn_vocabulary(_train_texts(task), model.vocab_size))
    if model.vocab == "hub":
        return read_tokenizer(model.hub_id, model.revision)
    return read_tokenizer(local_path(model.vocab, data_root))


def _train_texts(task: PartyTask) -> list[str]:
    """Return all training texts. Texts that parties share (a student and its teachers) count once."""
    trains = [as_kind(dataset.splits["train"], Examples) for dataset in task.datasets.values()]
    if all(train.texts is trains[0].texts for train in trains) and task.read:
        trains = trains[:1]
    return [text for train in trains for text in [*train.texts, *(train.pairs or [])]]


def weights_identity(model: ModelSettings, data_root: Path | None) -> str:
    """Return the identity of a pretrained encoder, as part of an artifact's key."""
    if model.weights == "scratch":
        return "scratch"
    if model.weights == "hub":
        return f"{model.hub_id}@{model.revision}"
    return digest([sha256(file) for file in weight_files(local_path(model.weights, data_root))])


def weights_notes(model: ModelSettings, task: PartyTask, data_root: Path | None) -> list[str]:
    """Return the notes of :func:`text_federation` on pretrained weights.

    Raises:
        UserError: The weights do not fit the model.
    """
    if model.weights == "scratch":
        return []
    size = vocabulary_size(load_tokenizer(model, task, data_root))
    return _check_weights(_networks(model, task, size).values(), data_root)


def _networks(model: ModelSettings, task: PartyTask, vocabulary: int) -> dict[str, Network]:
    return {name: Network(party_model(model, name), vocabulary, len(task.labels.names)) for name in task.datasets}


def _check_weights(networks: Iterable[Network], data_root: Path | None) -> list[str]:
    """Check that the pretrained encoder fits each of ``networks``, before training; return notes on the encoder.

    Raises:
        UserError: The encoder does not fit a network.
    """
    described: dict[str, None] = {}
    seen: list[Network] = []
    for network in networks:
        spec = as_kind(network.spec, ModelSettings)
        if spec.weights == "scratch" or network in seen:
            continue
        seen.append(network)
        with torch.device("meta"):
            model = TextClassifier(spec, as_kind(network.inputs, int), network.classes)
        described[describe_weights(read_encoder(spec, model.bert.config, data_root))] = None
    return list(described)


def model_files(model: ModelSettings, data_root: Path | None) -> list[Opened]:
    """Return the local vocabulary and weight files of ``model``, which the result lists with the task's files."""
    paths: list[Path] = []
    if model.vocab not in ("train", "hub"):
        source = local_path(model.vocab, data_root)
        folder = source if source.is_dir() else source.parent
        used = source.is_dir() or source.name == "vocab.txt"
        paths += [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()] if used else [source]
    if model.weights not in ("scratch", "hub"):
        source = local_path(model.weights, data_root)
        paths += [source / "config.json", *weight_files(source)]
    data = DataFolder(data_root or Path(), {})
    for path in paths:
        data.check(path)
    return data.files


def save_texts(examples: Examples, tokenizer: Tokenizer, key: str, store: Store) -> Ref:
    """Encode ``examples`` and store them under ``key``, unless the store already has this key."""
    with store.lock("tokens", key):
        if store.find("tokens", key) is None:
            encoded = encode(tokenizer, examples.texts, examples.pairs)
            tensors = encoded.tensors() | {"labels": torch.from_numpy(examples.labels)}
            store.put("tokens", key, tensors, {"texts": len(encoded), "tokens": len(encoded.ids)})
    return ("tokens", key)


def encoded_pool(examples: Examples, tokenizer: Tokenizer, max_length: int, store: Store) -> TextData:
    """Return the encoded texts of all clients; cached in the store."""
    return _stored(_encoded(examples, tokenizer, max_length, store), store)


def random_pool(bias: BiasSettings, tokenizer: Tokenizer, max_length: int, seed: int, store: Store) -> TextData:
    """Return encoded, unlabeled random texts; cached in the store."""
    return _stored(_random_texts(bias, tokenizer, max_length, seed, store), store)


def _stored(ref: Ref, store: Store) -> TextData:
    tensors = store.get(*ref).tensors()
    return TextData(Encoded(tensors["ids"], tensors["offsets"], tensors["second"]), tensors["labels"])


def _encoded(examples: Examples, tokenizer: Tokenizer, max_length: int, store: Store) -> Ref:
    words = digest(tokenizer.to_str())
    key = digest({"texts": examples.digest, "words": words, "max_length": max_length})
    return save_texts(examples, cut_to(tokenizer, max_length), key, store)


def _random_texts(bias: BiasSettings, tokenizer: Tokenizer, max_length: int, seed: int, store: Store) -> Ref:
    """Store ``bias.texts`` random texts of ``bias.tokens`` word pieces.

    Pieces are drawn uniformly, with replacement, from the whole vocabulary, including special and ## pieces, and joined
    by blanks (KNOT App. D.1).
    """
    words = digest(tokenizer.to_str())
    key = digest({"random": [bias.texts, bias.tokens], "words": words, "max_length": max_length, "seed": seed})
    if store.find("tokens", key) is not None:
        return ("tokens", key)
    draw = numpy_generator(seed, "random texts")
    drawn = draw.integers(vocabulary_size(tokenizer), size=(bias.texts, bias.tokens))
    texts = []
    for row in drawn.tolist():
        texts.append(" ".join(tokenizer.id_to_token(i) or "" for i in row))
    examples = Examples(texts, None, np.full(len(texts), -1, dtype=np.int64))
    return save_texts(examples, cut_to(tokenizer, max_length), key, store)
