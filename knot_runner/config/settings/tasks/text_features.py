"""Settings of what stands for a text where data are compared: words, or an encoder's [CLS]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.sizes import ABOVE_ZERO, Items, Width

#: ``encoder``: the run's own model as clients start from it, or the hub's; else a folder.
OWN_MODEL, HUB = "model", "hub"


@dataclass
class TextFeatures:
    """Texts as points; tasks of images have pixels, or an autoencoder's code (``encoder`` beside this)."""

    #: tfidf: TF-IDF of words, then a truncated SVD (latent semantic analysis); cls: last hidden state at [CLS]
    kind: Literal["tfidf", "cls"]
    #: whose train texts the words, the SVD and the scale are fitted on: the transfer set's, which no client has; the
    #: global one's, which the server has; clients: all clients', which then do not stay with them
    fitted_on: Literal["transfer", "global", "clients"]
    #: of tfidf: features of a text
    components: Annotated[Width, ABOVE_ZERO]
    #: of tfidf: most frequent words that are counted; null = all
    words: Items | None
    #: of cls: model = the run's own as clients start from it; hub = model.hub_id; else a folder with config.json,
    #: model.safetensors and vocab.txt
    encoder: str
