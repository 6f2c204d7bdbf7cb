"""Network architectures as plain data, and functions that build torch modules from this data.

A :class:`Network` is a text model, an image model, or a custom image model. A custom model is built by a function of
the user.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from knot_runner.config.settings.groups import ModelSettings
from knot_runner.config.settings.networks import CustomSettings, ImageModel
from knot_runner.models.images import Shape, build_image_model
from knot_runner.models.layers import TORCH_BATCH_NORMS
from knot_runner.util.errors import UserError, first_line, nearest


@dataclass(frozen=True)
class Network:
    """The architecture of one model, as plain data.

    Attributes:
        spec: The settings of the model.
        inputs: The shape (channels, height, width) of the images, or the vocabulary size of a text model.
        classes: The number of classes.
    """

    spec: ModelSettings | ImageModel
    inputs: Shape | int
    classes: int

    @property
    def shape(self) -> Shape:
        """Return the shape (channels, height, width) of the images. Only image models have this property."""
        assert not isinstance(self.inputs, int), "a text model has no images"
        return self.inputs

    @property
    def reads_texts(self) -> bool:
        """Return whether the network is a text model."""
        return isinstance(self.spec, ModelSettings)

    @property
    def is_pretrained(self) -> bool:
        """Return whether training starts from the weights of a pretrained encoder."""
        return isinstance(self.spec, ModelSettings) and self.spec.weights != "scratch"

    @property
    def head(self) -> str:
        """Return the prefix of the head's parameter names, such as ``head.``. The head is the last layer."""
        if isinstance(self.spec, CustomSettings):
            return f"{self.spec.head}."
        return "classifier." if self.reads_texts else "head."

    @property
    def is_ours(self) -> bool:
        """Return whether the network is an image model of this package, not a text model or a custom model."""
        return not self.reads_texts and not isinstance(self.spec, CustomSettings)


def build_network(network: Network) -> nn.Module:
    """Return the module of ``network``, with random initial weights drawn from torch's global generator.

    ``module(**batch)`` returns logits of shape [B, classes]. A batch of images is a dict with the tensor ``x``, shape
    [B, C, H, W]. A batch of texts is a dict with the tensors ``ids``, ``mask`` and ``types``, each of shape [B, L].
    """
    if isinstance(network.inputs, int):
        from knot_runner.models.bert import TextClassifier  # imports transformers, which only texts need

        assert isinstance(network.spec, ModelSettings)
        return TextClassifier(network.spec, network.inputs, network.classes)
    assert not isinstance(network.spec, ModelSettings)
    if isinstance(network.spec, CustomSettings):
        return build_custom_model(network.spec, network.inputs, network.classes)
    return build_image_model(network.spec, network.inputs, network.classes)


def build_custom_model(spec: CustomSettings, shape: Shape, classes: int) -> nn.Module:
    """Return the module that the function ``spec.target`` builds.

    Raises:
        UserError: The function does not exist, fails, or does not return a module. The error is also raised if the
            module has no head with the name ``spec.head``.
    """
    module_name, _, name = spec.target.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as problem:
        raise UserError(f"{spec.target} cannot be imported ({problem})", "model.target") from None
    try:
        model = function(shape, classes, **spec.options)
    except Exception as problem:
        raise UserError(f"{spec.target} fails ({type(problem).__name__}: {problem})", "model.target") from None
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec.target} returns {type(model).__name__} instead of a torch.nn.Module", "model.target")
    parts = {parameter.rpartition(".")[0] for parameter, _ in model.named_parameters()}
    if not any(f"{part}.".startswith(f"{spec.head}.") for part in parts):
        raise UserError(
            f"{spec.target} has no layer '{spec.head}' with parameters{nearest(spec.head, parts)}", "model.head"
        )
    model.register_forward_pre_hook(_images_first, with_kwargs=True)
    for module in model.modules():
        if isinstance(module, TORCH_BATCH_NORMS) and module.track_running_stats:
            module.register_forward_pre_hook(_freeze_for_one)
            module.register_forward_hook(_thaw)
    return model


def _images_first(
    _: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Pass the images ``x`` as the first positional argument, because ``forward`` may use any parameter name."""
    return (*args, *named.values()), {}


def _freeze_for_one(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Make a batch normalization use its running statistics for a batch with a single value per channel.

    A single value has no variance.
    """
    module.thaws = module.training and inputs[0].numel() == module.num_features
    if module.thaws:
        module.eval()


def _thaw(module: nn.Module, *_: object) -> None:
    if module.thaws:
        module.train()


def check_custom_model(spec: CustomSettings, model: nn.Module, shape: Shape, classes: int) -> None:
    """Check that ``model`` maps images of ``shape`` (channels, height, width) to one logit for each class.

    Raises:
        UserError: The model fails on such images, or does not return one logit for each class.
    """
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(2, *shape))
    except Exception as problem:
        raise UserError(
            f"{spec.target} fails on images of {list(shape)} ({first_line(problem)})", "model.target"
        ) from None
    if not isinstance(output, Tensor) or output.shape != (2, classes):
        what = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"{spec.target}: for two images, expected logits of shape [2, {classes}], got {what}", "model.target"
        )
