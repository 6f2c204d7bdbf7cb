"""Conversion of texts to points, to measure distances between data.

A point is a TF-IDF vector after a truncated SVD, or the model's last hidden state at [CLS].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.methods.transport import TextFeatures
from knot_runner.data.pools import TextPool, pool_texts
from knot_runner.data.rows import CONTEXT_MARK
from knot_runner.data.tasks import Examples
from knot_runner.engine.federated.flat import initial_network
from knot_runner.engine.seeds import keyed
from knot_runner.models.network import Network
from knot_runner.models.tokens import batches, cut_to, encode, vocabulary_size
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.pipelines.federations.texts import load_tokenizer
from knot_runner.util.errors import UserError

#: Number of texts that an encoder reads at once.
TEXTS_AT_ONCE = 64
#: A standard deviation below this fraction of the features' size is a rounding error.
ROUNDING = 1e-6
#: Function that converts texts to features [N, d], before they are centered and scaled.
Features = Callable[[Examples], np.ndarray]


@dataclass(frozen=True, eq=False)
class TextSpace:
    """The feature space of a task's texts. A point is (features - ``center``) / ``scale``, a vector of shape [d].

    Each of the d features has a variance over the texts used for fitting. ``scale`` is the square root of the mean of
    these d variances.
    """

    features: Features
    center: np.ndarray
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape (d,) of a point."""
        return self.center.shape

    def points(self, texts: Examples) -> np.ndarray:
        """Return the points of ``texts``, float64 [N, d]."""
        return np.asarray((self.features(texts) - self.center) / self.scale)


def text_space(context: RunContext, spec: TextFeatures | None, pool: TextPool) -> TextSpace:
    """Return the feature space that ``spec`` describes, fitted on the texts that ``spec`` selects.

    Raises:
        UserError: A setting of ``spec`` does not fit the texts.
    """
    if spec is None:
        raise UserError("required for texts, but not set. See conf/base/features.yaml for its keys", "features")
    fitted, called = _fitted(spec, pool)
    if spec.kind == "tfidf":
        features = _tfidf(spec, fitted, called, keyed(context.settings.seed, "features"))
    else:
        features = _cls(context, pool)
    points = features(fitted)
    center = points.mean(0)
    # One scale for all features keeps the order of distances. The mean variance of 1 is that of normalized pixels.
    scale = float(np.sqrt(np.mean((points - center) ** 2)))
    if not scale > ROUNDING * np.sqrt(np.mean(points**2)):  # also true for NaN
        problem = f"all {len(fitted)} training texts of {called} have equal features, so distances are undefined"
        raise UserError(problem, "features")
    return TextSpace(features, center, scale)


def read_pool(context: RunContext, spec: TextFeatures | None) -> TextPool:
    """Return a pool of a task's labeled texts. If ``spec`` is given, one of the pool's ``notes`` describes ``spec``.

    Raises:
        UserError: The texts cannot be read.
    """
    settings = context.settings
    task = context.services.texts(settings.task, context.data_root)
    pool = pool_texts(task, getattr(settings.partition, "by", "user"))
    return replace(pool, notes=[*pool.notes, *feature_notes(spec, pool)])


def feature_notes(spec: TextFeatures | None, pool: TextPool) -> list[str]:
    """Return a list with one note about the features and the texts used for fitting; [] if ``spec`` is None."""
    if spec is None:
        return []
    fitted, called = _fitted(spec, pool)
    what = "[CLS] of the clients' initial model"
    if spec.kind == "tfidf":
        what = f"TF-IDF of words, {spec.components} features"
    leaves = {
        "transfer": "which belong to no client",
        "global": "which belong to the server",
        "clients": "which leave the clients for this. With features.fitted_on=transfer, no texts leave the clients",
    }
    return [f"features: {what}, fitted on the {len(fitted):,} training texts of {called}, {leaves[spec.fitted_on]}"]


def _fitted(spec: TextFeatures, pool: TextPool) -> tuple[Examples, str]:
    """Return the texts used to fit features, and the name of these texts in notes."""
    if spec.fitted_on == "clients":
        return pool.train, "all clients"
    data = next(data for data in pool.whole.datasets.values() if data.role == spec.fitted_on)
    return as_kind(data.splits["train"], Examples), data.name


# ------------------------------------------------------------------------------------------------------------- TF-IDF


def _tfidf(spec: TextFeatures, fitted: Examples, called: str, seed: int) -> Features:
    """Fit TF-IDF (words of two letters or more, rows of norm 1) and a randomized truncated SVD of scikit-learn."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counter = TfidfVectorizer(max_features=spec.words)
    try:
        counted = counter.fit_transform(plain_texts(fitted))
    except ValueError:  # scikit-learn: "empty vocabulary"
        problem = f"none of the {len(fitted)} training texts of {called} has a word of two letters or more"
        raise UserError(problem, "features", hint="Use features.kind=cls") from None
    most = min(counted.shape)
    if spec.components > most:
        texts, words = counted.shape
        limit = f"{called} has {texts} training texts and {words} words, and the smaller number is the limit"
        raise UserError(f"expected at most {most}, got {spec.components}. {limit}", "features.components")
    svd = TruncatedSVD(spec.components, random_state=seed % 2**32)
    with threadpool_limits(1, "blas"), np.errstate(divide="ignore", invalid="ignore"):
        svd.fit(counted)  # the thread count changes the last digits; equal texts (rejected later) cause warnings
    return lambda texts: svd.transform(counter.transform(plain_texts(texts)))


def plain_texts(examples: Examples) -> list[str]:
    """Return one text per example. The text includes any earlier utterances, and both sentences of a pair."""
    pairs = examples.pairs or [""] * len(examples)
    return [f"{text.replace(CONTEXT_MARK, ' ')} {pair}" for text, pair in zip(examples.texts, pairs, strict=True)]


# --------------------------------------------------------------------------------------------------------------- [CLS]


def _cls(context: RunContext, pool: TextPool) -> Features:
    """Return the last hidden state at [CLS] of the clients' initial model.

    The features are computed without dropout, in float32, on the CPU.
    """
    settings = context.settings
    model = as_kind(settings.model, ModelSettings)
    tokenizer = load_tokenizer(context, pool.whole)
    network = Network(model, vocabulary_size(tokenizer), len(pool.classes))
    encoder = as_kind(initial_network(network, settings.seed, context.data_root).bert, torch.nn.Module).eval()
    tokenizer = cut_to(tokenizer, settings.task.max_length)

    def features(texts: Examples) -> np.ndarray:
        encoded = encode(tokenizer, texts.texts, texts.pairs)
        states = np.empty((len(encoded), model.hidden))
        for rows in batches(encoded.lengths, TEXTS_AT_ONCE, None):
            read = encoded.batch(rows)
            with torch.no_grad():
                output = encoder(input_ids=read["ids"], attention_mask=read["mask"], token_type_ids=read["types"])
            states[rows] = output.last_hidden_state[:, 0].numpy()
        return states

    return features
