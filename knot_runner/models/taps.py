"""Taps: points of a network at which an intermediate output is read, for the distillation of features and relations.

Each kind of network has named taps, numbered in forward order. Taps whose names begin with ``block`` hold feature maps
of shape [B, C, H, W]. All other named taps hold vectors of shape [B, D].

- cnn: ``block1``, ``block2``, ...: the output of each convolution after ReLU and pooling
- mlp: ``layer1``, ``layer2``, ...: the output of each hidden layer after ReLU
- resnet: ``block1``, ``block2``, ...: the output of each stage after the stage's last ReLU
- wrn: ``block1`` to ``block3``: the sum of shortcut and residual at the end of each stage, before normalization and
  ReLU, as in RepDistiller
- mobilenet: ``block1`` to ``block7``: the output of each stage, without ReLU
- vgg: ``block1``, ``block2``, ...: the output of each stage after ReLU and before pooling, as in RepDistiller
- bert: ``layer1``, ``layer2``, ...: the output of each encoder layer at [CLS]
- every network: ``features``: the input of the last linear layer (:func:`feature_reader`)

In addition, the output of every module of a network is a tap. The name of such a tap is the path of the module, such as
``stages.0`` or ``stem``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import (
    CnnSettings,
    MlpSettings,
    MobilenetSettings,
    ResnetSettings,
    VggSettings,
    WrnSettings,
)
from knot_runner.models.network import Network, build_network
from knot_runner.util.errors import UserError, nearest


class NetworkOutputs(NamedTuple):
    """The outputs of one network for a batch.

    Attributes:
        logits: The logits, shape [B, C].
        taps: The requested intermediate outputs by name: feature maps [B, channels, H, W] or vectors [B, D].
    """

    logits: Tensor
    taps: dict[str, Tensor] = {}


#: Function of a batch, passed as keyword arguments, that returns the network's outputs.
TapReader = Callable[..., NetworkOutputs]


@dataclass(frozen=True)
class _Point:
    """The position of a tap: a module's input, its output, or its output at [CLS] only."""

    module: str
    #: "input", "output" or "cls"
    reads: str


def tap_names(network: Network) -> list[str]:
    """Return the names of the network's taps in forward order, such as ``block1``, ``block2``, ``features``.

    Module paths are also valid names of taps, but the list does not include them.
    """
    return list(_named_points(network))


def _taps(network: Network, kind: str) -> list[str]:
    """Return the named taps of one ``kind`` in forward order.

    Taps of the kind "block" hold feature maps, and taps of the kind "layer" hold vectors.
    """
    return [name for name in tap_names(network) if name.startswith(kind)]


def default_taps(
    kind: Literal["none", "features", "middle", "last", "maps"], student: Network, teacher: Network
) -> list[tuple[str, str]]:
    """Return the pairs (student's tap, teacher's tap) that a loss term uses if its settings do not list any pairs.

    The pairs depend on ``kind``:

    - "none": no pairs.
    - "features": the tap ``features`` of each network.
    - "middle": the middle ``block`` tap of each network, as in FitNets. If the number of these taps is even, the last
      tap of the first half is used.
    - "last": the last ``block`` tap of each network.
    - "maps": all ``block`` taps. The last taps of the two networks form a pair, the second-to-last taps form a pair,
      and so on. If one network has more ``block`` taps, its first taps are left out.

    If one of the networks has no ``block`` taps, the pairs are:

    - "middle": the middle ``layer`` tap of each network. A network without ``layer`` taps uses ``features``.
    - "last": the tap ``features`` of each network.
    - "maps": no pairs.
    """
    if kind == "none":
        return []
    if kind == "features":
        return [("features", "features")]
    student_taps = _taps(student, "block")
    others = _taps(teacher, "block")
    if kind == "maps":
        return list(zip(student_taps[::-1], others[::-1], strict=False))[::-1]
    if kind == "last":
        if student_taps and others:
            return [(student_taps[-1], others[-1])]
        return [("features", "features")]
    if not student_taps or not others:
        student_taps = _taps(student, "layer") or ["features"]
        others = _taps(teacher, "layer") or ["features"]
    return [(student_taps[(len(student_taps) - 1) // 2], others[(len(others) - 1) // 2])]


def check_taps(network: Network, names: Sequence[str], key: str) -> None:
    """Check that all ``names`` are taps of the network.

    ``key``: the name of the setting to which the error message refers.

    Raises:
        UserError: A name is not a tap.
    """
    with torch.device("meta"):
        model = build_network(network)
    _points(model, network, names, key)


def read_taps(model: nn.Module, network: Network, names: Sequence[str], key: str = "taps") -> TapReader:
    """Return a function that runs a forward pass and returns the logits and the values of the taps ``names``.

    ``model`` must be built from ``network``. The returned values can be differentiated. If a module is called several
    times in one forward pass, the tap holds the module's last output. If the next module changes this output in place,
    as ``ReLU(inplace=True)`` does, the tap holds the changed value.

    ``key``: the name of the setting to which error messages refer.

    Raises:
        UserError: A tap is unknown. The returned function also raises this error if the value of a tap is not a tensor.
    """
    points = _points(model, network, names, key)
    modules = {name: model.get_submodule(point.module) for name, point in points.items()}

    def read(**batch: Tensor) -> NetworkOutputs:
        outputs = {}
        with ExitStack() as hooks:
            for name, point in points.items():
                hooks.enter_context(_hooked(modules[name], point, name, outputs))
            logits = model(**batch)
        taps = {}
        for name in points:
            output = outputs.get(name)
            if not isinstance(output, Tensor):
                what = "is not called in a forward pass"
                if name in outputs:
                    what = f"returns {type(output).__name__} instead of a tensor"
                raise UserError(f"tap '{name}' of model={network.spec.name} {what}. Use another tap", key)
            taps[name] = output
        return NetworkOutputs(logits, taps)

    return read


def feature_reader(model: nn.Module, network: Network) -> Callable[..., Tensor]:
    """Return a function that takes a batch and returns the features of ``model``, shape [B, H].

    Features are the inputs of the last layer. For texts, the features are read at [CLS]. ``model`` must be built from
    ``network``.
    """
    if network.reads_texts:
        return model.features
    read = read_taps(model, network, ["features"])
    return lambda **batch: read(**batch).taps["features"]


def _hooked(module: nn.Module, point: _Point, name: str, outputs: dict[str, object]) -> RemovableHandle:
    """Register a hook that stores the value at ``point`` in ``outputs[name]``. Return the hook's handle."""

    def keep_input(_: nn.Module, inputs: tuple[object, ...]) -> None:
        outputs[name] = inputs[0]

    def keep_output(_: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if isinstance(output, tuple):  # transformers' layers return tuples
            output = output[0]
        if point.reads == "cls":
            output = output[:, 0]
        outputs[name] = output

    if point.reads == "input":
        return module.register_forward_pre_hook(keep_input)
    return module.register_forward_hook(keep_output)


def _points(model: nn.Module, network: Network, names: Sequence[str], key: str) -> dict[str, _Point]:
    named = _named_points(network)
    modules = dict(model.named_modules())
    modules.pop("")
    points = {}
    for name in names:
        if name in named:
            points[name] = named[name]
        elif name in modules:
            points[name] = _Point(name, "output")
        else:
            beside = [path for path in modules if path.count(".") == name.count(".")]
            raise UserError(f"model {network.spec.name!r} has no tap '{name}'{nearest(name, [*named, *beside])}", key)
    return points


def _named_points(network: Network) -> dict[str, _Point]:
    """Return the position of each named tap, in forward order.

    In a CNN or an MLP, ReLU and pooling are not modules. Their output is read as the input of the next module.
    """
    spec = network.spec
    head = network.head.removesuffix(".")
    kind = "block"
    reads = "output"
    modules = []
    match spec:
        case CnnSettings():
            reads = "input"
            modules = [*(f"convs.{number}" for number in range(1, len(spec.convs))), "flatten"]
        case MlpSettings() if spec.hidden:
            kind = "layer"
            reads = "input"
            modules = [*(f"layers.{number}" for number in range(1, len(spec.hidden))), head]
        # In a WRN, normalization and ReLU after a stage belong to the next stage (pre-activation).
        case ResnetSettings() | WrnSettings() | MobilenetSettings():
            modules = [f"stages.{end - 1}" for end in accumulate(spec.blocks)]
        case VggSettings():
            modules = [f"stages.{number}" for number in range(len(spec.stages))]
        case ModelSettings():
            kind = "layer"
            reads = "cls"
            modules = [f"bert.encoder.layer.{number}" for number in range(spec.layers)]
    points = {f"{kind}{number}": _Point(module, reads) for number, module in enumerate(modules, 1)}
    return points | {"features": _Point(head, "input")}
