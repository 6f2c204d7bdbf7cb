"""Tokenizers with WordPiece vocabularies, tokenized texts as tensors, and batches of texts of similar length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from knot_runner.util.errors import UserError, first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
#: Characters that every vocabulary contains. There are no capitals, because texts are lower-cased first.
ASCII = "".join(chr(code) for code in range(33, 127) if not chr(code).isupper())
#: Maximum fraction of tokens that may be [UNK]. A larger fraction shows that the vocabulary does not fit the texts.
MAX_UNKNOWN = 0.2
#: Number of positions in BERT.
MAX_LENGTH = 512
#: Names of the files that describe a tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)


@dataclass(frozen=True)
class Encoded:
    """N tokenized texts in one tensor of token ids. Text i has the token ids ``ids[offsets[i]:offsets[i+1]]``.

    The second sentence of text i begins at token ``second[i]`` of the text, counted from 0. For a text without a second
    sentence, ``second[i]`` is the length of the text.
    """

    ids: Tensor  # int32 [total tokens]
    offsets: Tensor  # int64 [N + 1]
    second: Tensor  # int64 [N], the text's length where there is no second sentence

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Return the number of tokens of each text, int64 [N]."""
        return self.offsets.diff()

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """Return a batch of the texts with the row numbers ``rows``, padded to the batch's largest length L.

        The batch has these tensors of shape [B, L]:

        - ``ids``: the token ids
        - ``mask``: True for a token, False for padding
        - ``types``: 1 in the second sentence, otherwise 0
        """
        lengths = self.lengths[rows]
        position = torch.arange(int(lengths.max()))[None, :]
        mask = position < lengths[:, None]
        source = (self.offsets[rows][:, None] + position).clamp_(max=len(self.ids) - 1)
        ids = torch.where(mask, self.ids[source].long(), 0)  # [PAD] is id 0 in every BERT vocabulary
        types = (position >= self.second[rows][:, None]) & mask
        return {"ids": ids, "mask": mask, "types": types.long()}

    def tensors(self) -> dict[str, Tensor]:
        """Return a dict from the name of each field to its tensor."""
        return dict(vars(self))


def read_tokenizer(source: str | Path, revision: str | None = None) -> Tokenizer:
    """Return the tokenizer in ``source``. Use :func:`cut_to` to set the maximum number of tokens.

    Args:
        source: One of the following:

            - a hub repository
            - a folder with ``tokenizer_config.json``, ``tokenizer.json`` or ``vocab.txt``
            - a file ``tokenizer.json``
            - a file with one word piece per line. These pieces become the vocabulary of BERT's uncased tokenizer. If
              the file is a ``vocab.txt`` in a folder with ``tokenizer.json`` or ``tokenizer_config.json``, this folder
              is read instead.
        revision: The commit of the hub repository; None for a local file or folder.

    Raises:
        UserError: The tokenizer does not exist, cannot be read, or is not a BERT tokenizer.
    """
    path = Path(source)
    if path.name == "vocab.txt" and any((path.parent / name).is_file() for name in TOKENIZER_FILES[:2]):
        path = path.parent
    if revision is None and not path.exists():  # otherwise transformers would search the hub
        raise UserError(f"{source}: file or folder not found", "model.vocab")
    if path.is_dir() and not (path / "tokenizer_config.json").is_file():
        path = path / "tokenizer.json"
        if not path.is_file():
            path = path.with_name("vocab.txt")
    try:
        if revision is None and not path.is_dir():
            tokenizer = _file_tokenizer(path)
        else:
            tokenizer = _own_tokenizer(source if revision else path, revision)
    except UserError:
        raise
    except Exception as problem:  # transformers and tokenizers raise errors of many kinds
        raise UserError(f"{source}: cannot be read. Tokenizer error: {first_line(problem)}", "model.vocab") from None
    _check_words(source, tokenizer.get_vocab())
    return tokenizer


def _check_words(source: str | Path, words: dict[str, int]) -> None:
    missing = [token for token in SPECIAL[:4] if token not in words]
    if missing or words["[PAD]"] != 0:
        raise UserError(f"{source}: not a BERT vocabulary (no {', '.join(missing) or '[PAD] as id 0'})", "model.vocab")


def _file_tokenizer(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    text = file.read_text(encoding="utf-8")
    if file.suffix != ".json":
        words = text.removesuffix("\n").split("\n")  # U+2028 and the like are word pieces, not ends of lines
        _check_words(file, {word: number for number, word in enumerate(words)})
        return make_tokenizer(words)
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _own_tokenizer(source: str | Path, revision: str | None) -> Tokenizer:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    # model_max_length is 1e30 if there is no limit; cut_to keeps the truncation direction
    backend.enable_truncation(min(tokenizer.model_max_length, MAX_LENGTH), direction=tokenizer.truncation_side)
    return backend


def learn_vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """Learn a WordPiece vocabulary of at most ``size`` pieces from ``texts``. The result is deterministic.

    The vocabulary has three parts in this order: special tokens, all single characters (from the texts and ASCII), and
    longer pieces. The longer pieces are sorted by frequency, most frequent first. A piece that does not begin a word
    has the prefix ``##``.

    The longer pieces are learned by the BPE trainer of the package ``tokenizers``.
    """
    from tokenizers import Tokenizer, models, trainers
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalizer = BertNormalizer(lowercase=True)
    splitter = BertPreTokenizer()
    words = Counter[str]()
    for text in texts:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    # The library's WordPiece trainer numbers ## pieces in hash order, which differs between processes (tested).
    learner = Tokenizer(models.BPE())
    learner.train_from_iterator(
        Counter(dict(sorted(words.items()))).elements(),
        trainers.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False),
    )
    used = Counter[str]()
    letters = {*ASCII, *_after_first(ASCII)}
    for word, count in words.items():
        pieces = learner.encode(word).tokens
        for piece in (*pieces[:1], *_after_first(pieces[1:])):
            used[piece] += count
        letters.update(word[0], _after_first(word[1:]))
    longer = sorted(used.keys() - letters, key=lambda piece: (-used[piece], piece))
    return [*SPECIAL, *sorted(letters), *longer][:size]


def _after_first(pieces: Iterable[str]) -> list[str]:
    """Return ``pieces`` with the prefix ``##``, which marks pieces after the beginning of a word."""
    return [f"##{piece}" for piece in pieces]


def make_tokenizer(vocabulary: list[str]) -> Tokenizer:
    """Return BERT's uncased tokenizer for ``vocabulary``, a list of word pieces.

    A sentence ``a`` becomes ``[CLS] a [SEP]``, and a pair of sentences ``a`` and ``b`` becomes ``[CLS] a [SEP] b
    [SEP]``.
    """
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    words = dict(zip(vocabulary, range(len(vocabulary)), strict=True))
    return Tokenizer.from_str(BertWordPieceTokenizer(vocab=words, lowercase=True).to_str())


def cut_to(tokenizer: Tokenizer, max_length: int) -> Tokenizer:
    """Return a copy of ``tokenizer`` that truncates texts to ``max_length`` tokens.

    Raises:
        UserError: ``max_length`` is larger than the limit of the tokenizer.
    """
    from tokenizers import Tokenizer

    truncation = tokenizer.truncation or {"max_length": MAX_LENGTH, "direction": "right"}
    most = truncation["max_length"]
    if max_length > most:
        raise UserError(
            f"task.max_length={max_length}: expected at most {most} (the limit of the tokenizer in model.vocab)"
        )
    cut = Tokenizer.from_str(tokenizer.to_str())
    cut.enable_truncation(max_length, strategy="longest_first", direction=truncation["direction"])
    return cut


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the largest token id plus 1: the number of rows that the token embedding of a model needs."""
    return max(tokenizer.get_vocab().values()) + 1


def encode(tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None = None) -> Encoded:
    """Return ``texts`` as token ids. If ``pairs`` is given, text i has the sentences ``texts[i]`` and ``pairs[i]``.

    Raises:
        UserError: The fraction of [UNK] tokens is larger than ``MAX_UNKNOWN``.
    """
    inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
    tokens = []
    offsets = [0]
    second = []
    for encoding in tokenizer.encode_batch(inputs):
        second.append([*encoding.type_ids, 1].index(1))  # the length without a second sentence
        tokens += encoding.ids
        offsets.append(len(tokens))
    ids = torch.tensor(tokens, dtype=torch.int32)
    unknown = float((ids == tokenizer.token_to_id("[UNK]")).float().mean())  # NaN without tokens
    if unknown > MAX_UNKNOWN:
        raise UserError(f"{unknown:.0%} of the tokens are [UNK]. Use a vocabulary that fits the texts", "model.vocab")
    return Encoded(ids, torch.tensor(offsets), torch.tensor(second, dtype=torch.int64))


def batches(lengths: Tensor, size: int, generator: torch.Generator | None) -> list[Tensor]:
    """Divide texts into batches of at most ``size`` texts of similar length.

    Return the row numbers of the texts in each batch. Each text is in exactly one batch.

    Args:
        lengths: The number of tokens of each text.
        size: The batch size.
        generator: Random generator for the composition and the order of the batches. If None, all texts are sorted by
            length, longest first.
    """
    if generator is None:
        return list(torch.argsort(lengths, descending=True, stable=True).split(size))
    order = torch.randperm(len(lengths), generator=generator)
    cut = []
    for pool in order.split(32 * size):
        cut += pool[torch.argsort(lengths[pool], stable=True)].split(size)
    return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]
