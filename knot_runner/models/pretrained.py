"""A pre-trained BERT encoder: read from a local folder or the hub, checked whole, and put into a model.

Every tensor of the encoder must be in the file, and every tensor of the file must be the encoder's, of its shape and
finite; otherwise the run would start from partly or wholly random weights. Only heads may differ: the file's are not
used, and the model's is initialised at random, as :func:`describe_weights` reports.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knot_runner.config.settings import ModelSettings
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json

KEY = "model.weights"
#: prefixes of a file's own heads (of pre-training and of fine-tuning); position_ids are 0, 1, 2, ..., no weights
HEAD_PREFIXES = ("pooler.", "cls.", "classifier.", "qa_outputs.")
NO_WEIGHTS = ("embeddings.position_ids",)
#: fixed properties of the model, as config.json calls them; files with other values are of other networks
FIXED_CONFIG = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
#: tensor names that a message lists
_MAX_NAMES = 3


@dataclass(frozen=True)
class Encoder:
    """``tensors``: the encoder's, by name; ``unused``: names of the heads in the file; ``source``: the file."""

    source: str
    tensors: dict[str, Tensor]
    unused: list[str]


def local_path(name: str, data_root: Path | None) -> Path:
    """``name`` as a path, relative ones from ``paths.data``."""
    path = Path(name).expanduser()
    return path if path.is_absolute() or data_root is None else data_root / path


def weight_files(folder: Path) -> list[Path]:
    """The files in ``folder`` that hold weights: model.safetensors, or all parts of a large one. Raises
    :class:`UserError` where there is none."""
    whole = folder / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise UserError(f"{KEY}: {folder}: a folder with config.json and model.safetensors is right")
    return files


def load_pretrained(model: nn.Module, spec: ModelSettings, data_root: Path | None) -> Encoder:
    """Load the encoder that ``spec.weights`` names (hub, or a local folder) into ``model.bert``, in place.

    Raises :class:`UserError` naming ``model.weights``, the file and the tensors that do not fit.
    """
    encoder = read_encoder(spec, data_root)
    check_fits(encoder, model.bert.state_dict())
    model.bert.load_state_dict(encoder.tensors)
    return encoder


def read_encoder(spec: ModelSettings, data_root: Path | None) -> Encoder:
    """The encoder that ``spec.weights`` names, not yet compared with a model. Raises :class:`UserError`."""
    return _from_hub(spec) if spec.weights == "hub" else _from_folder(spec, local_path(spec.weights, data_root))


def check_fits(encoder: Encoder, wanted: dict[str, Tensor]) -> None:
    """Compare with ``wanted``, the model's encoder (on any device, also ``meta``). Raises :class:`UserError`."""
    source, tensors = encoder.source, encoder.tensors
    _refuse(source, "lacks", "of the encoder", [name for name in wanted if name not in tensors])
    _refuse(source, "has", "that the encoder has not", [name for name in tensors if name not in wanted])
    other_shapes, not_finite = [], []
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            other_shapes.append(f"{name} ({_shape_text(tensor)} where the model has {_shape_text(wanted[name])})")
        elif not torch.isfinite(tensor).all():
            not_finite.append(name)
    _refuse(source, "has", "of another shape", other_shapes)
    _refuse(source, "has", "with values that are not finite", not_finite)


def describe_weights(encoder: Encoder) -> str:
    """Returns one line on the loaded and the unused tensors."""
    unused = f"; unused of the file: {_some(encoder.unused)}" if encoder.unused else ""
    return f"{KEY}: {encoder.source}: {len(encoder.tensors)} tensors of the encoder; the head begins at random{unused}"


def _from_hub(spec: ModelSettings) -> Encoder:
    from transformers import BertModel

    source = spec.hub_id
    try:
        model, info = BertModel.from_pretrained(
            source, add_pooling_layer=False, revision=spec.revision, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise UserError(f"{KEY}: {source}: {reason}") from None
    _check_config(spec, source, model.config.to_dict())
    _refuse(source, "lacks", "of the encoder", sorted(info["missing_keys"]))
    unused = [_plain(name) for name in sorted(info["unexpected_keys"])]
    heads = [name for name in unused if name.startswith(HEAD_PREFIXES)]
    foreign = [name for name in unused if name not in heads and name not in NO_WEIGHTS]
    _refuse(source, "has", "that the encoder has not", foreign)
    return Encoder(source, dict(model.state_dict()), heads)


def _from_folder(spec: ModelSettings, folder: Path) -> Encoder:
    files = weight_files(folder)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{KEY}: {folder / 'config.json'}: is no JSON object")
    _check_config(spec, os.fspath(folder / "config.json"), config)
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in _read(file).items():
            if name in tensors:
                raise UserError(f"{KEY}: {file}: {name} is in another file of {folder} too")
            tensors[name] = tensor
    heads = sorted(name for name in tensors if name.startswith(HEAD_PREFIXES))
    encoder = {name: tensor for name, tensor in tensors.items() if name not in (*heads, *NO_WEIGHTS)}
    return Encoder(os.fspath(files[0] if len(files) == 1 else folder), encoder, heads)


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of one file by the encoder's names, floating-point ones as float32."""
    from safetensors.torch import load_file

    try:
        tensors = load_file(file)
    except Exception as problem:  # safetensors', OS and memory errors: all mean that the file is unusable
        reason = " ".join(str(problem).split())[:100]
        raise UserError(f"{KEY}: {file}: is no safetensors file, or cut short or broken ({reason})") from None
    if not tensors:
        raise UserError(f"{KEY}: {file}: holds no tensors")
    encoder, other_dtypes = {_plain(name): tensor for name, tensor in tensors.items()}, []
    for name, tensor in encoder.items():
        if tensor.is_floating_point():
            encoder[name] = tensor.float()
        elif name not in NO_WEIGHTS:
            other_dtypes.append(f"{name} ({str(tensor.dtype).removeprefix('torch.')})")
    _refuse(os.fspath(file), "has", "that are no floating-point numbers", other_dtypes)
    return encoder


def _plain(name: str) -> str:
    """A tensor's name without the prefix of models with a head; the oldest files call norms' tensors gamma and beta."""
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def _check_config(spec: ModelSettings, source: str, config: dict[str, Any]) -> None:
    """Refuses mismatches invisible in shapes: another kind of network, number of attention heads or activation."""
    kind = config.get("model_type", "bert")
    if kind != "bert":
        raise UserError(f"{KEY}: {source}: model_type is {kind}; bert is the one kind that is read")
    if (heads := config.get("num_attention_heads", spec.heads)) != spec.heads:
        raise UserError(f"{KEY}: {source}: has num_attention_heads {heads}; model.heads={heads} is right for it")
    for key, value in FIXED_CONFIG.items():
        if config.get(key, value) != value:
            raise UserError(f"{KEY}: {source}: has {key} {config[key]}; the model's is {value}")


def _refuse(source: str, verb: str, what: str, names: list[str]) -> None:
    if names:
        raise UserError(f"{KEY}: {source}: {verb} {len(names)} tensor{'s' * (len(names) > 1)} {what}: {_some(names)}")


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _shape_text(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
