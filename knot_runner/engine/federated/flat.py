"""A model's parameters and buffers as two flat vectors: P parameters, and Q buffer values."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.engine.seeds import seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.network import Network, build_network, check_custom_model
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class Field:
    """The position of one tensor in a flat vector.

    Attributes:
        name: The name of the tensor.
        shape: The shape of the tensor.
        start: The index of the tensor's first value.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """Return the index after the tensor's last value."""
        return self.start + prod(self.shape)


# With flat vectors, averaging models, adding control variates and stacking models each take one line of code.
@dataclass(frozen=True)
class FlatLayout:
    """The positions of a model's parameters in one flat vector, and of its buffers in another flat vector.

    In both vectors, the tensors have the same order as in the model's definition.
    """

    parameters: tuple[Field, ...]
    buffers: tuple[Field, ...]
    #: the prefix of the names of the head's parameters
    head: str

    @property
    def size(self) -> int:
        """Return P, the number of parameters."""
        return self.parameters[-1].stop

    @property
    def buffer_size(self) -> int:
        """Return Q, the number of buffer values; 0 for models without BatchNorm."""
        return self.buffers[-1].stop if self.buffers else 0

    @property
    def features(self) -> int:
        """Return H, the number of inputs of the head."""
        return next(field.shape[-1] for field in self.parameters if self._matches(field, "head"))

    def mask(self, keep: str) -> Tensor:
        """Return a mask, shape [P], that is true for the selected parameters.

        ``keep``: the parameters to select: "all", "head", or "body" (all except the head).
        """
        return self._mask(lambda field: keep == "all" or self._matches(field, "head") == (keep == "head"))

    def biases(self) -> Tensor:
        """Return a mask, shape [P], that is true for the parameters whose names end with ``bias``."""
        return self._mask(lambda field: field.name.endswith("bias"))

    @functools.cache  # noqa: B019 (layouts are few, and live as long as a run)
    def matching(self, patterns: tuple[str, ...]) -> Tensor:
        """Return a mask, shape [P], that is true for the parameters that ``patterns`` select by name.

        Patterns have the syntax of file name patterns, such as ``layers.*``. The pattern ``head`` stands for the head.
        A pattern that begins with "!" excludes parameters, and any other pattern selects parameters. If all patterns
        begin with "!", all parameters that are not excluded are selected.

        Raises:
            UserError: A pattern matches no parameter, or no parameter is selected.
        """
        wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
        mask = torch.full((self.size,), not wanted)
        for pattern in wanted:
            mask |= self._selected(pattern)
        for pattern in patterns:
            if pattern.startswith("!"):
                mask &= ~self._selected(pattern.removeprefix("!"))
        if not mask.any():
            raise UserError("no parameter is shared. Use other patterns, or method=local", "method.shared")
        return mask

    def _selected(self, pattern: str) -> Tensor:
        """Return a mask, shape [P], of the parameters that match ``pattern``; raise UserError without a match."""
        mask = self._mask(lambda field: self._matches(field, pattern))
        if not mask.any():
            raise UserError(f"no parameter of the model matches {pattern!r}", "method.shared")
        return mask

    def _mask(self, selected: Callable[[Field], bool]) -> Tensor:
        return torch.cat([torch.full((field.stop - field.start,), selected(field)) for field in self.parameters])

    def _matches(self, field: Field, pattern: str) -> bool:
        if pattern == "head":
            return field.name.startswith(self.head)
        return fnmatch.fnmatchcase(field.name, pattern)

    def body_parts(self, weights: Tensor, buffers: Tensor) -> list[Tensor]:
        """Return a list: one view into ``weights`` [P] for each tensor of the body, and then ``buffers`` [Q]."""
        parts = []
        for field in self.parameters:
            if not self._matches(field, "head"):
                parts.append(weights[field.start : field.stop])
        return [*parts, buffers]


def layout_of(network: Network) -> FlatLayout:
    """Return the :class:`FlatLayout` of models with the architecture ``network``."""
    # Building a model on the meta device needs no memory and no random draws.
    with torch.device("meta"):
        model = build_network(network)
    return FlatLayout(_fields(dict(model.named_parameters())), _fields(_kept_buffers(model)), network.head)


def initial(network: Network, seed: int, data_root: Path | None = None) -> tuple[Tensor, Tensor]:
    """Return the model from :func:`initial_network` as two flat vectors: P weights, and Q buffer values."""
    return flat_vectors(initial_network(network, seed, data_root))


def initial_network(network: Network, seed: int, data_root: Path | None) -> nn.Module:
    """Return a new model with initial weights that depend on the run's ``seed``.

    If the network has a pretrained encoder, the encoder's weights are loaded. If the path of these weights is relative,
    ``data_root`` is the base folder.

    Raises:
        UserError: A custom model does not accept the images, or does not return one logit per class.
    """
    check_network(network, seed)
    with seeded(seed, "init"):
        model = build_network(network)
    if network.is_pretrained:
        from knot_runner.models.pretrained import load_pretrained

        load_pretrained(model, network.spec, data_root)
    return model


def check_network(network: Network, seed: int) -> None:
    """Check a custom model on images with the shape of the task's images. Other models are not checked.

    Raises:
        UserError: The custom model does not accept the images, or does not return one logit per class.
    """
    if isinstance(network.spec, CustomSettings):
        with seeded(seed, "check"):
            check_custom_model(network.spec, build_network(network), network.inputs, network.classes)


def flat_vectors(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return copies of a model's parameters and buffers as two flat vectors."""
    weights = _joined(model.parameters())
    return weights, _joined([weights[:0], *_kept_buffers(model).values()])


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return a copy of the values of all ``tensors`` in one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def views(flat: Tensor, fields: tuple[Field, ...]) -> Tensors:
    """Return one view into ``flat`` for each tensor in ``fields``, as a dict from name to view.

    ``flat``: one flat vector or several, shape [..., size]. Each view has the same leading dimensions.
    """
    return {f.name: flat[..., f.start : f.stop].view(*flat.shape[:-1], *f.shape) for f in fields}


@torch.no_grad()
def load_flat(model: nn.Module, weights: Tensor, buffers: Tensor) -> None:
    """Copy the flat vectors ``weights`` and ``buffers`` into the parameters and buffers of ``model``."""
    for vector, tensors in ((weights, model.parameters()), (buffers, _kept_buffers(model).values())):
        start = 0
        for tensor in tensors:
            tensor.copy_(vector[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def _kept_buffers(model: nn.Module) -> Tensors:
    """Return the running statistics by name. Other buffers are omitted, such as the position ids of text models."""
    return {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def _fields(named: Tensors) -> tuple[Field, ...]:
    fields = []
    start = 0
    for name, tensor in named.items():
        fields.append(Field(name, tuple(tensor.shape), start))
        start = fields[-1].stop
    return tuple(fields)
