"""Reads a finished run's models from the files in its folder alone, to show that these suffice for prediction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.strict import build
from knot_runner.data.images.views import viewed_images
from knot_runner.data.tasks import Images
from knot_runner.engine.commit import load_bytes
from knot_runner.engine.examples import ImageData, TextData
from knot_runner.engine.federated import flat
from knot_runner.models.network import Network, build_network
from knot_runner.models.tokens import encode
from knot_runner.pipelines.models import DESCRIPTION_FILE, OWN_MODELS_FILE, TOKENIZER_FILE, joined_parts
from knot_runner.records import MODEL_FILE, read_record, require_result
from knot_runner.util.files import Facts


@dataclass(frozen=True)
class LoadedModel:
    """A model of a finished run, ready to predict."""

    module: nn.Module
    classes: list[str]
    inputs: Facts
    tokenizer: Tokenizer | None

    def probabilities(self, examples: Any, pairs: list[str] | None = None) -> np.ndarray:
        """Return the probabilities float32 [N, C] of ``examples``.

        Args:
            examples: Images [N, C, H, W], uint8 or in 0..1; or N texts. A text of a dialogue may be a list: the
                utterance, then the earlier ones, newest first.
            pairs: The second sentences of a task of pairs.
        """
        count = len(examples)
        none = torch.zeros(count, dtype=torch.int64)
        dtype = next(self.module.parameters()).dtype
        if self.tokenizer is None:
            mean, std = (torch.tensor(self.inputs[name], dtype=torch.float64) for name in ("mean", "std"))
            pixels = np.asarray(examples)
            if self.inputs.get("view", "none") != "none":
                pixels = viewed_images(Images(pixels, none.numpy()), self.inputs["view"]).pixels
            data: ImageData | TextData = ImageData(torch.from_numpy(pixels), none, mean, std)
        else:
            context, mark = self.inputs["context"], self.inputs["context_mark"]
            texts = [text if isinstance(text, str) else mark.join(text[: context + 1]) for text in examples]
            data = TextData(encode(self.tokenizer, texts, pairs), none)
        found = torch.empty(count, len(self.classes), dtype=torch.float64)
        with torch.no_grad():
            for rows, batch in data.select(torch.arange(count), dtype).in_turn(256):
                found[rows] = self.module(**batch).double()
        return torch.softmax(found, 1).float().numpy()


def load_model(folder: Path, name: str | None = None) -> LoadedModel:
    """Return model ``name`` of the finished run in ``folder``; None: its only one, or "global"."""
    result = require_result(folder)
    described = json.loads(read_record(folder, result, DESCRIPTION_FILE))
    models = described["models"]
    if name is None:
        name = next(iter(models)) if len(models) == 1 else "global"
    chosen = models[name]
    plain = described["networks"][chosen["network"]]
    spec = build(NETWORK_SETTINGS.get(plain["spec"]["kind"], ModelSettings), plain["spec"], "model")
    shape = plain["inputs"]
    network = Network(spec, tuple(shape) if isinstance(shape, list) else shape, plain["classes"])
    tensors = load_bytes(read_record(folder, result, MODEL_FILE))
    if OWN_MODELS_FILE in result.digest:
        tensors |= load_bytes(read_record(folder, result, OWN_MODELS_FILE))
    found = joined_parts(tensors, chosen["parts"], flat.layout_of(network))
    module = build_network(network).to(next(iter(found.values())).dtype).eval()
    module.load_state_dict({**module.state_dict(), **found})
    tokenizer = None
    if described["inputs"]["kind"] == "texts":
        tokenizer = Tokenizer.from_str(read_record(folder, result, TOKENIZER_FILE).decode())
    return LoadedModel(module, described["classes"], described["inputs"], tokenizer)
