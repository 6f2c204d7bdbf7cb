"""Generated texts. They need no files and no network, but do not replace real data.

Each party has its own domain and its own label proportions, so the parties are non-IID in words and in labels. Some
texts contain words of another label, so no model reaches a score of 1.
"""

from __future__ import annotations

import functools
import random

import numpy as np

from knot_runner.config.settings.text_tasks import DatasetSettings, SplitFile, TaskSettings
from knot_runner.data import words
from knot_runner.data.rows import CONTEXT_MARK
from knot_runner.data.splits import largest_remainders
from knot_runner.data.tasks import Examples
from knot_runner.util.errors import UserError, nearest

#: probability that an informative word belongs to the domain alone
OWN = 0.6
#: kind of task -> its domains, and its number of labels
VOCABULARIES = {"sentiment": (words.SENTIMENT, 5), "emotion": (words.EMOTION, 5), "inference": (words.INFERENCE, 3)}


def generate(settings: TaskSettings, name: str, data: DatasetSettings) -> dict[str, Examples]:
    """Return the generated splits of a data set: train, valid and test. A transfer set has no test split.

    The same settings always give the same texts.

    Raises:
        UserError: The domain is unknown, the number of labels or of shares is wrong, or a split would be empty.
    """
    source = data.embedded
    where = f"task.datasets.{name}.embedded"
    if source is None:
        raise UserError("required by task.source=embedded, but not set", where)
    domains, count = VOCABULARIES[settings.kind]
    if source.domain not in domains:
        raise UserError(
            f"unknown {settings.kind} domain '{source.domain}'{nearest(source.domain, domains)}", f"{where}.domain"
        )
    for key, values in (("task.labels.names", settings.labels.names), (f"{where}.shares", source.shares)):
        if len(values) != count:
            raise UserError(f"expected {count} shares (one per {settings.kind} label), got {len(values)}", key)
    splits = {}
    for split, size in split_sizes(source.rows, settings.split).items():
        if split == "test" and data.role == "transfer":
            continue
        if size < 1:
            raise UserError(f"{source.rows} rows are too few for the split {split!r}. Use more rows", f"{where}.rows")
        key = f"{name}/{split}/{source.domain}/{source.seed}"
        counts = tuple(label_counts(size, source.shares))
        splits[split] = _written(settings.kind, key, source.domain, counts, settings.context)
    return splits


def split_sizes(rows: int, split: SplitFile) -> dict[str, int]:
    """Return the number of rows in train, valid and test if ``split`` is applied to ``rows`` rows."""
    valid = round(rows * split.valid)
    test = round(rows * split.test)
    return {"train": rows - valid - test, "valid": valid, "test": test}


def label_counts(size: int, shares: list[float]) -> list[int]:
    """Divide ``size`` rows among the labels in proportion to ``shares``. Return the number of rows of each label.

    Numbers are rounded by the method of largest remainders.
    """
    return largest_remainders(size * np.array(shares), size).tolist()


@functools.lru_cache(maxsize=64)  # for the data sets of one or two tasks, which the jobs of a process share
def _written(kind: str, key: str, domain: str, counts: tuple[int, ...], context: int) -> Examples:
    """Return ``counts[label]`` texts of each label, drawn with the random seed ``key``."""
    rng = random.Random(f"{kind}/{key}")
    labels = np.repeat(range(len(counts)), counts).tolist()
    rng.shuffle(labels)
    second = None
    if kind == "sentiment":
        texts = [_review(rng, domain, label) for label in labels]
    elif kind == "emotion":
        labels = _sticky(rng, labels)
        texts = _dialogues(rng, domain, labels, context)
    else:
        texts, second = map(list, zip(*(_pair(rng, domain, label) for label in labels), strict=True))
    return Examples(texts, second, np.array(labels, dtype=np.int64))


def _telling_word(rng: random.Random, words_of_label: tuple[str, ...], common: tuple[str, ...]) -> str:
    return rng.choice(words_of_label if rng.random() < OWN else common)


def _review(rng: random.Random, domain: str, label: int) -> str:
    """Return a review of two or three opinions.

    Each opinion matches the label or, with probability 30%, a neighboring label. With probability 15%, an opinion is
    expressed as the negation of the opposite opinion.
    """
    things, opinions = words.SENTIMENT[domain]
    clauses = []
    for thing in rng.sample(things, rng.choice((2, 3))):
        level = label if rng.random() < 0.7 else min(max(label + rng.choice((-1, 1)), 0), 4)
        negation = ""
        if level != 2 and rng.random() < 0.15:
            level = 4 - level
            negation = "not "
        word = _telling_word(rng, opinions[level], words.COMMON_OPINIONS[level])
        clauses.append(f"the {thing} {rng.choice(('is', 'was', 'looks'))} {negation}{word}")
    opening = rng.choice(("", "i bought this last week . ", "my order came today . ", "second time here . "))
    return opening + rng.choice((" and ", " , ", " . ")).join(clauses) + " ."


def _sticky(rng: random.Random, labels: list[int]) -> list[int]:
    """Return ``labels`` in an order in which about half of the labels equal the previous label, as emotions last."""
    left = list(labels)
    ordered = []
    last = -1
    while left:
        if last in left and rng.random() < 0.5:
            left.remove(last)
        else:
            last = left.pop(rng.randrange(len(left)))
        ordered.append(last)
    return ordered


def _dialogues(rng: random.Random, domain: str, labels: list[int], context: int) -> list[str]:
    """Return one utterance per label, in dialogues of four to ten utterances.

    Each utterance is followed by up to ``context`` earlier utterances of the dialogue, newest first.
    """
    texts = []
    dialogue = list[str]()
    length = 0
    for label in labels:
        if len(dialogue) == length:
            dialogue = []
            length = rng.randint(4, 10)
        dialogue.append(_utterance(rng, domain, label))
        texts.append(CONTEXT_MARK.join(dialogue[::-1][: context + 1]))
    return texts


def _utterance(rng: random.Random, domain: str, label: int) -> str:
    """Return an utterance about an object of the domain, with a phrase for the label.

    15% of the utterances have no phrase, and 10% have the phrase of a random emotion.
    """
    things, phrases = words.EMOTION[domain]
    about = f"{rng.choice(words.FILLERS)} {rng.choice(('about', 'with', 'and'))} {rng.choice(things)}"
    chance = rng.random()
    if chance < 0.15:
        return about
    if chance < 0.25:
        label = rng.randrange(5)
    phrase = _telling_word(rng, phrases[label], words.COMMON_FEELINGS[label])
    return rng.choice((f"{phrase} , {about}", f"{about} , {phrase}"))


def _pair(rng: random.Random, domain: str, label: int) -> tuple[str, str]:
    """Return a premise and a hypothesis about the same person. 70% of hypotheses contain a cue word of the label.

    In 70% of contradictions, the hypothesis states the opposite act.
    """
    people, locations, acts, cues = words.INFERENCE[domain]
    who = rng.choice(people)
    location = rng.choice(locations)
    act = rng.choice(acts)
    done, opposite = act if rng.random() < 0.5 else act[::-1]
    premise = f"{location} {who} {done} {rng.choice(('today', 'again', 'at last', 'that morning'))}"
    hypothesis = f"{who} {done}"
    if label == 2 and rng.random() < 0.7:
        hypothesis = f"{who} {opposite}"
    if rng.random() >= 0.9:
        label = rng.randrange(3)
    if rng.random() < 0.7:
        hypothesis += f" {_telling_word(rng, cues[label], words.COMMON_CUES[label])}"
    return premise, hypothesis
