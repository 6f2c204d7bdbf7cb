"""The models of a finished run, as files of its folder that suffice for prediction.

``model.json`` describes them: classes, inputs (normalization and view of images; context of texts), networks, and the
tensors of each model. ``tokenizer.json`` is the tokenizer with its length, in the format of the library tokenizers.
``own_models.safetensors`` holds what ``model.safetensors`` lacks of the models of clients and parties. The result has
the checksum of each file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from knot_runner.config.settings import ModelSettings
from knot_runner.config.settings.networks import NETWORK_SETTINGS
from knot_runner.config.strict import build
from knot_runner.data.images.views import viewed_images
from knot_runner.data.rows import CONTEXT_MARK
from knot_runner.data.tasks import Images
from knot_runner.engine.commit import load_bytes
from knot_runner.engine.examples import ImageData, TextData
from knot_runner.engine.federated import flat
from knot_runner.engine.tensor_file import Tensors, tensor_parts
from knot_runner.models.network import Network, build_network
from knot_runner.models.tokens import cut_to, encode
from knot_runner.records import MODEL_FILE, read_record, require_result
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import Facts, write_atomic, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from knot_runner.pipelines.context import RunContext

DESCRIPTION_FILE, TOKENIZER_FILE, OWN_MODELS_FILE = "model.json", "tokenizer.json", "own_models.safetensors"
#: Texts or images that are predicted at a time.
EXAMPLES_AT_ONCE = 256


@dataclass
class KeptModels:
    """Models to be written: ``models`` has each one's network and ``parts``, ``own`` what is not in model.safetensors.

    The parts of a model are laid over each other. Each stands for the tensors whose names begin with it.
    """

    models: dict[str, tuple[Network, list[str]]] = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)


def write_models(
    context: RunContext, kept: KeptModels, classes: list[str], tokenizer: Tokenizer | None = None, **images: Any
) -> None:
    """Write what prediction with ``kept`` needs, beside the run's model.safetensors.

    Args:
        context: The run.
        kept: Its models.
        classes: Names of the classes.
        tokenizer: That of the texts; None for images.
        images: ``mean`` and ``std`` of each channel, and the ``view`` that the model reads; nothing for texts.
    """
    settings, folder = context.settings, context.folder
    inputs: Facts = {"kind": "images", **images}
    if tokenizer is not None:
        write_atomic(folder / TOKENIZER_FILE, cut_to(tokenizer, settings.task.max_length).to_str())
        inputs = {"kind": "texts", "context": settings.task.context, "context_mark": CONTEXT_MARK}
    networks: list[Network] = []
    models = {}
    for name, (network, parts) in kept.models.items():
        if network not in networks:
            networks.append(network)
        models[name] = {"network": networks.index(network), "parts": parts}
    (folder / OWN_MODELS_FILE).unlink(missing_ok=True)  # left by the run that this one replaces
    if kept.own:
        write_atomic(folder / OWN_MODELS_FILE, tensor_parts(kept.own))
    described = [asdict(network) for network in networks]
    write_json(
        folder / DESCRIPTION_FILE, {"classes": classes, "inputs": inputs, "networks": described, "models": models}
    )


def joined_parts(tensors: Mapping[str, Tensor], parts: Sequence[str], layout: flat.FlatLayout) -> Tensors:
    """Return the parameters and buffers of the model whose ``parts`` lie in ``tensors``, by name."""
    joined: Tensors = {}
    for part in parts:
        for entry in (*layout.parameters, *layout.buffers):
            key = f"{part}{entry.name}"
            if key in tensors:
                joined[entry.name] = tensors[key]
    return joined


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
            for rows, batch in data.select(torch.arange(count), dtype).in_turn(EXAMPLES_AT_ONCE):
                found[rows] = self.module(**batch).double()
        return torch.softmax(found, 1).float().numpy()


def load_model(folder: Path, name: str | None = None) -> LoadedModel:
    """Return model ``name`` of the finished run in ``folder`` (None: its global model or student), from nothing else.

    Raises:
        UserError: The run keeps no such model, or a file is missing or was changed.
    """
    result = require_result(folder)
    if DESCRIPTION_FILE not in result.digest:
        raise UserError("the run keeps no models: its method trains none, or it diverged", folder)
    described = json.loads(read_record(folder, result, DESCRIPTION_FILE))
    models = described["models"]
    chosen = models.get(next(iter(models)) if name is None and len(models) == 1 else name or "global")
    if chosen is None:
        raise UserError(f"the run has no model {name or 'global'!r}{nearest(name or 'global', models)}", folder)
    plain = described["networks"][chosen["network"]]
    kind = plain["spec"]["kind"]
    spec = build(NETWORK_SETTINGS.get(kind, ModelSettings), plain["spec"], "model")
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
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(read_record(folder, result, TOKENIZER_FILE).decode())
    return LoadedModel(module, described["classes"], described["inputs"], tokenizer)
