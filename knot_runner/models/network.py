"""An architecture as plain data, and the module it describes: one type for models of texts and of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from knot_runner.config.settings import ImageModel, ModelSettings
from knot_runner.config.settings.networks import CustomSettings
from knot_runner.models.images import Shape, build_image_model


@dataclass(frozen=True)
class Network:
    """Settings of a model (of one party), the form of its inputs, and the number of classes.

    ``inputs``: (channels, height, width) of images, or the size of a text model's vocabulary.
    """

    spec: ModelSettings | ImageModel
    inputs: Shape | int
    classes: int

    @property
    def reads_texts(self) -> bool:
        """Whether it is a model of texts."""
        return isinstance(self.spec, ModelSettings)

    @property
    def is_pretrained(self) -> bool:
        """Whether training starts from the weights of a pre-trained encoder."""
        return self.reads_texts and self.spec.weights != "scratch"

    @property
    def head(self) -> str:
        """Prefix of the names of the last linear layer's parameters."""
        if isinstance(self.spec, CustomSettings):
            return f"{self.spec.head}."
        return "classifier." if self.reads_texts else "head."

    @property
    def is_ours(self) -> bool:
        """Whether it is an image model of this package, for which engines may have their own implementation."""
        return not self.reads_texts and not isinstance(self.spec, CustomSettings)


def build_network(network: Network) -> nn.Module:
    """The module, randomly initialised from torch's current seed: ``module(**batch)`` -> logits [B, classes].

    A batch is ``x`` [B, C, H, W] of images; ``ids``, ``mask`` and ``types`` [B, L] of texts.
    """
    if network.reads_texts:
        from knot_runner.models.bert import TextClassifier  # imports transformers, for texts alone

        return TextClassifier(network.spec, network.inputs, network.classes)
    if isinstance(network.spec, CustomSettings):
        from knot_runner.models.custom import build_custom_model

        return build_custom_model(network.spec, network.inputs, network.classes)
    return build_image_model(network.spec, network.inputs, network.classes)


def feature_reader(model: nn.Module, network: Network) -> Callable[..., Tensor]:
    """Returns a function batch -> features [B, H], the inputs of the last layer of ``model``, built by ``network``
    ([CLS] of a text)."""
    if network.reads_texts:
        return model.features

    def read(**batch: Tensor) -> Tensor:
        found: list[Tensor] = []
        head = model.get_submodule(network.head.removesuffix("."))
        hook = head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        try:
            model(**batch)
        finally:
            hook.remove()
        return found[0]

    return read
