"""Load pretrained BERT encoders from a local folder or the Hugging Face hub, and check their tensors.

The weight files must contain every tensor of the encoder, with the expected shape and finite values. Other tensors are
not allowed, except for those of a head, which are ignored. The head of the model is initialized at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.util.errors import UserError, counted, first_line

if TYPE_CHECKING:
    from transformers import BertConfig

KEY = "model.weights"
#: Prefixes of the tensors of pretraining and fine-tuning heads in weight files.
HEAD_PREFIXES = ("pooler.", "cls.", "classifier.", "qa_outputs.")
#: Required values in config.json. With other values, the weights are those of a different architecture.
FIXED_CONFIG = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12}
#: Largest number of tensor names in a message.
_MAX_NAMES = 3


@dataclass(frozen=True)
class Encoder:
    """A pretrained encoder.

    Attributes:
        source: The encoder's folder, or its repository on the Hugging Face hub.
        tensors: The tensors of the encoder by name.
        unused: The names of the unused tensors in the weight files. These tensors belong to a head.
    """

    source: str
    tensors: dict[str, Tensor]
    unused: list[str]


def local_path(name: str, data_root: Path | None) -> Path:
    """Return the path of the local model ``name``. A relative ``name`` is a path in the folder ``data_root``."""
    return (data_root or Path()) / Path(name).expanduser()  # an absolute path replaces data_root


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files in ``folder``. A large model may be stored in several files.

    If there is a file ``model.safetensors``, return only this file. Otherwise, return all safetensors files.

    Raises:
        UserError: The folder contains no weight files or no config.json.
    """
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise UserError(f"{folder}: expected a folder with config.json and model.safetensors", KEY)
    return files


def load_pretrained(model: nn.Module, spec: ModelSettings, data_root: Path | None) -> Encoder:
    """Read the pretrained encoder that ``spec.weights`` selects, copy it into ``model.bert``, and return it.

    Raises:
        UserError: The encoder cannot be read, does not fit the model, or has a value that is not finite.
    """
    bert: Any = model.bert
    encoder = read_encoder(spec, bert.config, data_root)
    bert.load_state_dict(encoder.tensors)
    return encoder


def read_encoder(spec: ModelSettings, config: BertConfig, data_root: Path | None) -> Encoder:
    """Return the pretrained encoder that ``spec.weights`` selects, from the hub or a local folder.

    The encoder must fit ``config``, the configuration of the model. If ``spec.weights`` is a relative path, it is
    a path in the folder ``data_root``.

    Raises:
        UserError: The encoder cannot be read, does not fit the model, or has a value that is not finite.
    """
    from transformers import AutoConfig, BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()  # read_encoder reports tensors that do not fit
    logging.disable_progress_bar()
    source = spec.hub_id
    revision = spec.revision
    if spec.weights != "hub":
        folder = local_path(spec.weights, data_root)
        weight_files(folder)
        source = str(folder)
        revision = "main"
    saved = _load(AutoConfig, source, revision=revision)
    for key, value in FIXED_CONFIG.items():
        configured = getattr(saved, key, None)
        if configured != value:
            raise UserError(f"{source}: {key} is {configured!r}, but only {value!r} is supported", KEY)
    heads = saved.num_attention_heads
    if heads != spec.heads:
        raise UserError(f"{source}: has {heads} attention heads. Set model.heads={heads}", KEY)
    model, info = _load(
        BertModel,
        source,
        config=config,
        revision=revision,
        add_pooling_layer=False,
        use_safetensors=True,  # safetensors only, never a pickle
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        dtype=torch.float32,
    )
    unused = sorted(name.removeprefix("bert.") for name in info["unexpected_keys"])
    foreign = [name for name in unused if not name.startswith(HEAD_PREFIXES)]
    # With a missing or different tensor, the run would start from partly random weights.
    _refuse(source, "lacks", "of the encoder", sorted(info["missing_keys"]))
    other_shapes = []
    for name, shape, wanted in sorted(info["mismatched_keys"]):
        other_shapes.append(f"{name} ({list(shape)}, but the model has {list(wanted)})")
    _refuse(source, "has", "of a different shape", other_shapes)
    _refuse(source, "has", "that the encoder does not have", foreign)
    tensors = dict(model.state_dict())
    not_finite = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    _refuse(source, "has", "with values that are not finite", not_finite)
    return Encoder(source, tensors, unused)


def _load(kind: Any, source: str, **options: Any) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            return kind.from_pretrained(source, **options)
    except Exception as problem:  # transformers', safetensors' and OS errors: all mean that the files are unusable
        raise UserError(f"{source}: cannot be read ({first_line(problem)})", KEY) from None


def describe_weights(encoder: Encoder) -> str:
    """Return one line of text with the number of loaded tensors and the names of unused tensors."""
    text = f"{KEY}: {encoder.source}: {len(encoder.tensors)} tensors loaded; the head is initialized at random"
    if encoder.unused:
        text += f"; unused tensors: {_some(encoder.unused)}"
    return text


def _refuse(source: str, verb: str, what: str, names: list[str]) -> None:
    if names:
        raise UserError(f"{source}: {verb} {counted(len(names), 'tensor')} {what}: {_some(names)}", KEY)


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
