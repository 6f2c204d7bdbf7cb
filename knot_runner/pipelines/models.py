"""The models of a finished run, as files in its folder that suffice for prediction.

``model.json`` describes them: classes, inputs (normalization and view of images; context of texts), networks, and the
tensors of each model. ``tokenizer.json`` is the tokenizer with its maximum length, in the format of the library
tokenizers. ``own_models.safetensors`` holds tensors of the clients' and parties' models that are not in
``model.safetensors``. The result has the checksum of each file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from knot_runner.data.rows import CONTEXT_MARK
from knot_runner.engine.federated import flat
from knot_runner.engine.tensor_file import Tensors, tensor_parts
from knot_runner.models.network import Network
from knot_runner.models.tokens import cut_to
from knot_runner.util.files import Facts, write_atomic, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from knot_runner.pipelines.context import RunContext

DESCRIPTION_FILE, TOKENIZER_FILE, OWN_MODELS_FILE = "model.json", "tokenizer.json", "own_models.safetensors"


@dataclass
class KeptModels:
    """Models to be written.

    ``models``: each model's network and ``parts``; ``own``: tensors that are not in model.safetensors. A part stands
    for the tensors whose names begin with it. Later parts of a model override earlier ones.
    """

    models: dict[str, tuple[Network, list[str]]] = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)


def write_models(
    context: RunContext, kept: KeptModels, classes: list[str], tokenizer: Tokenizer | None = None, **images: Any
) -> None:
    """Write the files for prediction with ``kept``, in addition to the run's model.safetensors.

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
    """Return the parameters and buffers, by name, of the model whose ``parts`` are in ``tensors``."""
    joined: Tensors = {}
    for part in parts:
        for entry in (*layout.parameters, *layout.buffers):
            key = f"{part}{entry.name}"
            if key in tensors:
                joined[entry.name] = tensors[key]
    return joined
