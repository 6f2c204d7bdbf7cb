"""Generated text with a small grammar: what runs without any file or network. Not a stand-in for the real data.

Each party has a domain and label shares of its own (non-IID twice over: words and labels). Half of the telling words
are common to all, the rest belong to the domain. Labels overlap with their neighbours, so no model reaches 1.
"""

from __future__ import annotations

import random

import numpy as np

from knot_runner.config.settings import DatasetSettings, EmbeddedSource, SplitFile, TaskSettings
from knot_runner.data import words
from knot_runner.data.examples import Examples
from knot_runner.data.rows import CONTEXT_MARK
from knot_runner.util.errors import UserError, nearest

Generated = tuple[list[str], list[str] | None]

#: how often a telling word is one of the domain's own
OWN = 0.6
TONGUES = {
    "sentiment": (words.SENTIMENT, 5),
    "emotion": (words.EMOTION, 5),
    "inference": (words.INFERENCE, 3),
}


def generate(settings: TaskSettings, name: str, data: DatasetSettings) -> dict[str, Examples]:
    """Train, valid and (but for a transfer set) test of one party, with the sizes ``split`` gives ``rows``.

    The draws are keyed by data set, split and ``embedded.seed``, hence alike in every process and whatever else runs.
    """
    source = data.embedded
    where = f"task.datasets.{name}.embedded"
    if source is None:
        raise UserError(f"{where}: is not set, so task.source=embedded cannot generate it")
    domains, count = TONGUES[settings.kind]
    if source.domain not in domains:
        raise UserError(f"{where}.domain: no {settings.kind} domain '{source.domain}'{nearest(source.domain, domains)}")
    for key, length in (("task.labels.names", len(settings.labels.names)), (f"{where}.shares", len(source.shares))):
        if length != count:
            raise UserError(f"{key}: {length} of them; generated {settings.kind} texts have {count} labels")
    made = {}
    for split, size in split_sizes(source.rows, settings.split).items():
        if split == "test" and data.role == "transfer":
            continue
        if size < 1:
            raise UserError(f"{where}.rows: {source.rows} rows leave none for {split}")
        made[split] = _examples(settings, name, split, source, size)
    return made


def split_sizes(rows: int, split: SplitFile) -> dict[str, int]:
    """Rows of train, valid and test: ``rows`` shared out by ``split``."""
    held = {"valid": round(rows * split.valid), "test": round(rows * split.test)}
    return {"train": rows - sum(held.values()), **held}


def label_counts(size: int, shares: list[float]) -> list[int]:
    """``size`` rows dealt to labels by ``shares`` (largest remainders)."""
    exact = [size * share for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda k: counts[k] - exact[k])
    for k in by_remainder[: size - sum(counts)]:
        counts[k] += 1
    return counts


def _examples(settings: TaskSettings, name: str, split: str, source: EmbeddedSource, size: int) -> Examples:
    draw = random.Random(f"{settings.kind}/{name}/{split}/{source.domain}/{source.seed}")
    labels = [label for label, count in enumerate(label_counts(size, source.shares)) for _ in range(count)]
    draw.shuffle(labels)
    if settings.kind == "sentiment":
        texts, pairs = [_review(draw, source.domain, label) for label in labels], None
    elif settings.kind == "emotion":
        labels = _sticky(draw, labels)
        texts, pairs = _dialogues(draw, source.domain, labels, settings.context), None
    else:
        both = [_pair(draw, source.domain, label) for label in labels]
        texts, pairs = [first for first, _ in both], [second for _, second in both]
    return Examples(texts, pairs, np.array(labels, dtype=np.int64))


def _telling(draw: random.Random, own: tuple[str, ...], common: tuple[str, ...]) -> str:
    return draw.choice(own if draw.random() < OWN else common)


def _review(draw: random.Random, domain: str, label: int) -> str:
    """Two or three opinions of the label's level or (30%) a neighbouring one; 15% are said by denying the opposite."""
    things, own = words.SENTIMENT[domain]
    own = words.pooled_words(own, [levels for _, levels in words.SENTIMENT.values()])
    clauses = []
    for thing in draw.sample(things, draw.choice((2, 3))):
        level = label if draw.random() < 0.7 else label + draw.choice((-1, 1))
        level = min(max(level, 0), 4)
        denied = level != 2 and draw.random() < 0.15
        named = 4 - level if denied else level
        word = _telling(draw, own[named], words.COMMON_OPINIONS[named])
        clauses.append(f"the {thing} {draw.choice(('is', 'was', 'looks'))} {'not ' if denied else ''}{word}")
    opening = draw.choice(("", "i bought this last week . ", "my order came today . ", "second time here . "))
    return opening + draw.choice((" and ", " , ", " . ")).join(clauses) + " ."


def _sticky(draw: random.Random, labels: list[int]) -> list[int]:
    """The same labels in an order in which half of them repeat the one before: moods last over several utterances."""
    left, ordered = list(labels), []
    while left:
        again = ordered and ordered[-1] in left and draw.random() < 0.5
        ordered.append(left.pop(left.index(ordered[-1]) if again else draw.randrange(len(left))))
    return ordered


def _dialogues(draw: random.Random, domain: str, labels: list[int], context: int) -> list[str]:
    """Utterances in dialogues of four to ten, each followed by up to ``context`` earlier ones, newest first."""
    texts: list[str] = []
    said: list[str] = []
    length = 0
    for label in labels:
        if len(said) == length:
            said, length = [], draw.randint(4, 10)
        said.append(_utterance(draw, domain, label))
        texts.append(CONTEXT_MARK.join(said[::-1][: context + 1]))
    return texts


def _utterance(draw: random.Random, domain: str, label: int) -> str:
    """A thing of the domain with a telling phrase; 15% say nothing telling, 10% what fits another mood."""
    things, own = words.EMOTION[domain]
    own = words.pooled_words(own, [feelings for _, feelings in words.EMOTION.values()])
    about = f"{draw.choice(words.FILLERS)} {draw.choice(('about', 'with', 'and'))} {draw.choice(things)}"
    chance = draw.random()
    if chance < 0.15:
        return about
    mood = draw.randrange(5) if chance < 0.25 else label
    phrase = _telling(draw, own[mood], words.COMMON_FEELINGS[mood])
    return draw.choice((f"{phrase} , {about}", f"{about} , {phrase}"))


def _pair(draw: random.Random, domain: str, label: int) -> tuple[str, str]:
    """A premise, and a hypothesis that keeps its act or, for a contradiction, mostly turns it round; 70% have a cue."""
    people, places, acts, own = words.INFERENCE[domain]
    own = words.pooled_words(own, [entry[3] for entry in words.INFERENCE.values()])
    who, place, act = draw.choice(people), draw.choice(places), draw.choice(acts)
    done, opposite = act if draw.random() < 0.5 else act[::-1]
    premise = f"{place} {who} {done} {draw.choice(('today', 'again', 'at last', 'that morning'))}"
    said = opposite if label == 2 and draw.random() < 0.7 else done
    cue_of = label if draw.random() < 0.9 else draw.randrange(3)
    cue = f" {_telling(draw, own[cue_of], words.COMMON_CUES[cue_of])}" if draw.random() < 0.7 else ""
    return premise, f"{who} {said}{cue}"
