"""Manual forward and backward passes of the lean engine's dense layers.

All weights are views into one flat vector [P]. Gradients are added directly to the weights, or to views into another
flat vector. Autograd must be off.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated import flat

#: A layer's (weight, bias).
WeightBias = tuple[Tensor, Tensor]
#: Two lists of (weight, bias) pairs: one for the convolutions, and one for the dense layers.
LayerPairs = tuple[list[WeightBias], list[WeightBias]]

#: Layers with at least this number of weights use oneDNN in the forward pass. The choice does not depend on measured
#: times, because oneDNN and torch.mm round differently. Measured on AVX-512 with AMX and batches of 10 and 16: oneDNN
#: takes 1.4 to 2.7 times as long as torch.mm below 0.5 M weights, and 0.7 to 0.95 times from 1 M. The backward pass
#: always uses torch.mm, because oneDNN is not faster for models of this size.
LARGE = 1_000_000

_aten = torch.ops.aten
#: A pixel is added image by image if at most one in ``RARE`` images differs from the background at this pixel. A single
#: addition by this method takes about 14 times as long as in a dense product (measured on a core with AVX-512, with 256
#: outputs).
RARE = 16
#: :class:`Foreground` is used if at most this fraction of the pixels needs a dense product.
MOST_MULTIPLIED = 0.8


def pairs(vector: Tensor, layout: flat.FlatLayout) -> LayerPairs:
    """Return the (weight, bias) pairs of the convolutions, and the (weight, bias) pairs of the dense layers.

    All tensors are views into ``vector``, which has P values. The head is the last dense layer.
    """
    tensors = list(flat.views(vector, layout.parameters).values())
    convolutions = []
    dense = []
    for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
        if weight.dim() == 4:
            convolutions.append((weight, bias))
        else:
            dense.append((weight, bias))
    return convolutions, dense


def affine(x: Tensor, pair: WeightBias) -> Tensor:
    """Return ``x W' + b``, shape [B, M], where W' is the transpose of the weight W.

    Args:
        x: The inputs, shape [B, D].
        pair: The weight W, shape [M, D], and the bias b, shape [M].
    """
    weight, bias = pair
    if by_onednn(weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch.addmm(bias, x, weight.t())


def by_onednn(weight: Tensor) -> bool:
    """Return whether a dense layer with this weight uses oneDNN in the forward pass.

    The choice depends only on the size and the dtype, so that runs are reproducible.
    """
    return weight.numel() >= LARGE and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def masked_(gradient: Tensor, output: Tensor) -> Tensor:
    """Set the elements of ``gradient`` to 0 where the ReLU output ``output`` is 0; return ``gradient``.

    This is the backward pass of the ReLU.
    """
    return _aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


class Dense:
    """Dense layers with ReLU in between. They map inputs of shape [B, D] to logits of shape [B, C].

    The last layer is the head.
    """

    def __init__(self, layers: list[WeightBias]) -> None:
        self.layers = layers
        self._inputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._targets: list[WeightBias] = []
        # views are created once, because at these sizes it takes as long to create a view as to use it
        self._transposed = [(weight.t(), bias, by_onednn(weight)) for weight, bias in layers]
        self._ones: dict[int, Tensor] = {}

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return ``scale`` times the logits for ``x`` [B, D]. Store every layer's input for :meth:`backward`."""
        inputs = [x]
        for pair, (transposed, bias, large) in zip(self.layers[:-1], self._transposed, strict=False):
            x = affine(x, pair) if large else torch.addmm(bias, x, transposed)
            inputs.append(x.relu_())
        self._inputs = inputs
        transposed, bias, _ = self._transposed[-1]
        return torch.addmm(bias, x, transposed, beta=scale, alpha=scale)

    @property
    def features(self) -> Tensor:
        """Return the head's input in the most recent :meth:`forward` call, shape [B, H]."""
        return self._inputs[-1]

    def set_targets(self, targets: list[WeightBias], trains: str) -> None:
        """Select the layers to train, and the tensors to which the gradients of these layers are added.

        ``targets``: a pair of tensors (weight, bias) for each layer. ``trains``: the layers to train: "all", "head"
        (the last layer), or "body" (all layers except the last).
        """
        layers = range(len(self.layers))
        if trains == "head":
            layers = layers[-1:]
        elif trains == "body":
            layers = layers[:-1]
        self._learning = layers
        self._targets = targets

    def backward(self, gradient: Tensor, through: bool, by_features: Tensor | None = None) -> Tensor | None:
        """Compute the gradients of all trained layers.

        Args:
            gradient: The gradient with respect to the logits, shape [B, C].
            through: Whether to return the gradient with respect to the input of the first layer.
            by_features: An additional gradient with respect to the input of the head, shape [B, H], or None.

        Returns:
            The gradient with respect to the input of the first layer, shape [B, D]. None if ``through`` is false.
        """
        lowest = -1 if through else self._learning.start
        gradients: list[Tensor | None] = [None] * len(self.layers)
        for i in range(len(self.layers) - 1, max(lowest, 0) - 1, -1):
            gradients[i] = gradient
            if i > lowest:
                gradient = torch.mm(gradient, self.layers[i][0])
                if by_features is not None and i == len(self.layers) - 1:
                    gradient += by_features
                if i:
                    masked_(gradient, self._inputs[i])
        self._gradients = gradients
        return gradient if through else None

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times each gradient to its target; see :meth:`set_targets`."""
        for i in self._learning:
            (weight, bias), slope = self._targets[i], self._gradients[i].t()
            weight.addmm_(slope, self._inputs[i], alpha=alpha)
            # add the row sums of the slope in one operation
            bias.addmv_(slope, self._ones_like(slope.shape[1], bias), alpha=alpha)

    def _ones_like(self, count: int, reference: Tensor) -> Tensor:
        if count not in self._ones:
            self._ones[count] = reference.new_ones(count)
        return self._ones[count]


class Foreground:
    """Images that are mostly background. This class saves work if many models process the same images.

    Let X be the images and B the background, which has one value per channel. The first dense layer, with the weight W
    and the bias b, has the output ``X W' + b = (X - B) W' + (B W' + b)``, where W' is the transpose of W. Where an
    image shows the background, ``X - B`` is 0 and needs no multiplication.

    - B is the first pixel of the first image. The output is correct for any B. B affects only how much work is saved.
    - A pixel that is background in every image is skipped.
    - A pixel that is foreground in few images is multiplied only for these images.
    - Any other pixel is multiplied for all images, as in a dense product.

    Results differ from a dense product only by rounding.
    """

    def __init__(self, images: Tensor) -> None:
        count, channels = images.shape[:2]
        self._background = images[0, :, 0, 0].repeat_interleave(images[0, 0].numel())
        difference = images.reshape(count, -1) - self._background
        differing = (difference != 0).sum(0)
        self._often = (differing * RARE > count).nonzero()[:, 0]
        self._rarely = ((differing > 0) & (differing * RARE <= count)).nonzero()[:, 0]
        self._dense = difference[:, self._often].contiguous()
        rare = difference[:, self._rarely]
        image, self._pixel = rare.nonzero(as_tuple=True)  # sorted by image
        self._value = rare[image, self._pixel]
        self._begins = torch.searchsorted(image, torch.arange(count))

    @property
    def saves(self) -> bool:
        """Return whether :meth:`affine` is faster than an ordinary dense layer for these images.

        It is faster if few pixels need a dense product: at most the fraction :data:`MOST_MULTIPLIED` of all pixels.
        """
        return len(self._often) <= MOST_MULTIPLIED * len(self._background)

    def numel(self) -> int:
        """Return the number of stored values."""
        return self._dense.numel() + 2 * self._value.numel()

    def affine(self, pair: WeightBias) -> Tensor:
        """Return ``X W' + b``, shape [n, M]: the output of a dense layer for the images X.

        ``pair``: the weight W, shape [M, C H W], and the bias b, shape [M].
        """
        weight, bias = pair
        constant = torch.addmv(bias, weight, self._background)
        outputs = torch.addmm(constant, self._dense, weight.index_select(1, self._often).t())
        if len(self._value):
            columns = weight.index_select(1, self._rarely).t().contiguous()
            outputs += F.embedding_bag(self._pixel, columns, self._begins, mode="sum", per_sample_weights=self._value)
        return outputs
