"""The temperature probe: how the softmax temperature changes gradients, decision boundaries and outputs of a model.

The probe computes the content of three figures in FLex&Chill section 3.1, at each of several temperatures:

- Fig. 1 (section 3.1.1): the norm of each image's gradient at the input layer
- Fig. 2 (section 3.1.2): how much one training step changes a misclassified image's distance to the decision boundary
- Fig. 3: the softmax probabilities of one image

Details that the paper does not specify are settings (:class:`ProbeSettings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.engine.examples import ImageData, normalized
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.seeds import generator
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.network import Network, build_network
from knot_runner.papers.chill.settings import ProbeSettings
from knot_runner.pipelines.context import Note, Progress, RunContext, as_kind
from knot_runner.util.errors import UserError

#: Number of images in a batch.
_ROWS = 256


def probe_part(
    number: int, state: Tensors, context: RunContext, network: Network, data: ImageData, device: torch.device
) -> Tensors | None:
    """Compute part ``number`` of the probe and return its arrays. Return None if ``number`` is above 3.

    ``data`` holds the training images. ``state`` holds the arrays of all earlier parts. All arrays are on the CPU. With
    K temperatures and C classes, the parts return:

    - Part 0, the model to probe: ``model.weights`` [P] and ``model.buffers`` [Q]
    - Part 1, for the N images of Fig. 1:
      - ``gradients.norm`` float32 [K, N]: gradient norms
      - ``gradients.right`` uint8 [N]: 1 if the image is classified correctly
    - Part 2, for the M misclassified images of Fig. 2:
      - ``boundary.before`` float32 [M]: distance to the decision boundary in normalized pixels; inf if it is larger
        than ``attack_limit``
      - ``boundary.after`` float32 [K, M]: for each temperature, this distance after one training step
      - ``boundary.right`` uint8 [K, M]: 1 if the image is classified correctly after the training step
      - ``boundary.tried`` int64 [1]: the number of examined images, including those classified correctly
    - Part 3, for the image of Fig. 3:
      - ``softmax.probabilities`` float32 [K, C]
      - ``softmax.label`` int64 [1]: the true class
      - ``softmax.row`` int64 [1]: the image's row in ``data``

    Raises:
        UserError: The training of the model to probe diverges, or no training image has the class ``shown_class``.
    """
    config: ProbeSettings = context.method
    last = network.classes - 1
    if config.shown_class > last:
        raise UserError(f"unknown class {config.shown_class}. Use 0 to {last}", "method.shown_class")
    of_class = (data.labels.cpu() == config.shown_class).nonzero()[:, 0]
    if not len(of_class):
        raise UserError(f"no training image has class {config.shown_class}. Use another class", "method.shown_class")
    if number == 0:
        return start_probe(context, network, data, device)
    model = build_network(network)
    flat.load_flat(model, state["model.weights"], state["model.buffers"])
    probed = Probed(model.to(device).eval().requires_grad_(False), data, device, context.progress)
    if number == 1:
        return gradient_arrays(config, probed, _draw(context, "images", data))
    if number == 2:
        return boundary_arrays(config, probed, _draw(context, "boundary_images", data))
    return _softmax(config, probed, of_class, context.note) if number == 3 else None


def _draw(context: RunContext, key: str, data: ImageData) -> Tensor:
    """Return sorted rows of training images, drawn with the run's seed. Their number is at most the setting ``key``."""
    order = torch.randperm(len(data.labels), generator=generator(context.settings.seed, "probe", key))
    return order[: getattr(context.method, key)].sort().values


@torch.no_grad()
def _softmax(config: ProbeSettings, probed: Probed, rows: Tensor, note: Note) -> Tensors:
    """Return softmax(z / T) for the logits z of the first misclassified image in ``rows`` (Fig. 3).

    If every image is classified correctly, use the first image and print a note. The paper does not say which image of
    the class is shown.
    """
    logits = probed.logits(rows)
    is_wrong = logits.argmax(1) != config.shown_class
    if not is_wrong.any():
        note(
            f"method.shown_class: all {len(rows):,} images of class {config.shown_class} are correct; showing the first"
        )
    chosen = int(is_wrong.int().argmax())  # index 0 if no image is misclassified
    shares = [torch.softmax(logits[chosen] / temperature, 0).cpu() for temperature in config.temperatures]
    return {
        "softmax.probabilities": torch.stack(shares),
        "softmax.label": torch.tensor([config.shown_class]),
        "softmax.row": rows[[chosen]],
    }


@dataclass(frozen=True)
class Probed:
    """The model to probe and the training images ``data``.

    The model is on ``device`` and in evaluation mode. Its parameters require no gradients.
    """

    model: nn.Module
    data: ImageData
    device: torch.device
    progress: Progress

    def batches(self, rows: Tensor, size: int = _ROWS, stage: str = "") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) of the training images at row numbers ``rows``, in batches of at most ``size``.

        The images are normalized, float32 [n, C, H, W]. The labels have shape [n]. If ``stage`` is given, the progress
        is shown under this name.
        """
        done = 0
        if not len(rows):
            return
        for part in rows.to(self.data.labels.device).split(size):
            if stage:
                self.progress(stage, done, len(rows), "")
            images = normalized(self.data, part, torch.float32)
            yield images.to(self.device), self.data.labels[part].to(self.device)
            done += len(part)
        if stage:
            self.progress(stage, done, done, "done")

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits of the N training images at row numbers ``rows``, shape [N, C]."""
        return torch.cat([self.model(images) for images, _ in self.batches(rows)])


def start_probe(context: RunContext, network: Network, data: ImageData, device: torch.device) -> Tensors:
    """Return the weights and buffers of the model to probe.

    The model is trained centrally at T=1 for ``warm_epochs`` epochs. With ``warm_epochs=0``, the model is untrained.
    The paper describes the model only as "an initial neural network".

    Raises:
        UserError: The training diverges.
    """
    settings = context.settings
    warm_epochs = context.method.warm_epochs
    weights, buffers = flat.initial(network, settings.seed)
    if warm_epochs:
        everything = torch.arange(len(data.labels))
        training = as_kind(settings.training, FederatedTraining)
        recipe = Recipe(
            phases=(Phase(warm_epochs),), batch_size=training.batch_size, drop_last=training.drop_last,
            optimizer=training.optimizer, lr=training.lr, momentum=training.momentum,
            weight_decay=training.weight_decay, decay_biases=training.decay_biases, augment=settings.task.augment,
        )  # fmt: skip
        request = LocalTraining(0, 0, settings.seed, ClientModel(weights, buffers), everything, everything[:0], recipe)
        context.progress("central training", 0, 1, f"{warm_epochs} epochs")
        trained = Loop(network, data, data, device, torch.float32).train_client(request)  # without evaluation
        context.progress("central training", 1, 1, "done")
        weights = trained.weights
        buffers = trained.buffers
        if not (weights.isfinite().all() and buffers.isfinite().all()):
            raise UserError(f"central training with lr={recipe.lr} diverged. Use a smaller rate", "training.lr")
    return {"model.weights": weights, "model.buffers": buffers}


def gradient_arrays(config: ProbeSettings, probed: Probed, rows: Tensor) -> Tensors:
    """Return the arrays of part 1 of :func:`probe_part` (Fig. 1), for the images at row numbers ``rows``."""
    parts = []
    for images, labels in probed.batches(rows, stage="gradient norms"):
        parts.append(gradient_norms(probed.model, images, labels, config.temperatures))
    norms, right = zip(*parts, strict=True)
    return {"gradients.norm": torch.cat(norms, 1).cpu(), "gradients.right": torch.cat(right).to("cpu", torch.uint8)}


def gradient_norms(
    model: nn.Module, images: Tensor, labels: Tensor, temperatures: list[float]
) -> tuple[Tensor, Tensor]:
    """Return the gradient norms, shape [K, n], and whether each image is classified correctly, bool [n].

    There are K ``temperatures`` and n ``images``. The loss of an image with logits z and label y at temperature T is
    the cross-entropy CE(z / T, y). Its gradient is taken with respect to the weights, but not the bias, of the first
    linear or convolutional layer. The model must process each image independently, as in evaluation mode.
    """
    seen: list[Tensor] = []
    layer = next(module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    with layer.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0].detach(), output))):
        logits = model(images.detach().requires_grad_())
    layer_input, layer_output = seen
    patches = layer_input[:, None]  # [n, L, inputs] for L output positions; a linear layer has one
    if isinstance(layer, nn.Conv2d):
        unfolded = F.unfold(layer_input, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        patches = unfolded.transpose(1, 2)
    norms = []
    for temperature in temperatures:
        down = logit_gradients(logits.detach(), labels, temperature)
        (output_gradients,) = torch.autograd.grad(logits, layer_output, down, retain_graph=True)
        if patches.shape[1] == 1:  # |g x^T| = |g| |x|
            norms.append(output_gradients.flatten(1).norm(dim=1) * patches.flatten(1).norm(dim=1))
        else:  # norm of sum_l g_l x_l^T
            norms.append((output_gradients.flatten(2) @ patches).flatten(1).norm(dim=1))
    return torch.stack(norms), logits.argmax(1) == labels


def logit_gradients(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the gradient of the cross-entropy CE(z / T, y) with respect to the logits z, shape [n, C] (eq. 2).

    The gradient is ``(p - onehot(y)) / T`` with the probabilities ``p = softmax(z / T)``. The result is accurate
    even if the probability of the true class rounds to 1.
    """
    truth = labels[:, None]
    others = torch.softmax(logits / temperature, 1).scatter(1, truth, 0.0)
    return others.scatter(1, truth, -others.sum(1, keepdim=True)) / temperature


#: Number of images in a batch in which each image has its own copy of the weights after a step (McMahan's CNN: 2
#: million weights, 8 MB, per image).
_OWN_WEIGHTS = 16
#: The first search interval is [0, attack_limit / 2**DOUBLINGS]; the upper end doubles up to this many times.
DOUBLINGS = 12


@torch.no_grad()
def boundary_arrays(config: ProbeSettings, probed: Probed, rows: Tensor) -> Tensors:
    """Return the arrays of part 2 of :func:`probe_part` (Fig. 2). ``rows``: row numbers of the examined images."""
    chosen = rows[probed.logits(rows).argmax(1).cpu() != probed.data.labels[rows].cpu()]
    done = 0
    before = torch.empty(len(chosen))
    after = torch.empty(len(config.temperatures), len(chosen))
    right = torch.empty(after.shape, dtype=torch.uint8)

    def one_image(weights: Tensors, image: Tensor) -> Tensor:
        logits: Tensor = functional_call(probed.model, weights, (image[None],))[0]
        return logits

    for images, labels in probed.batches(chosen, _OWN_WEIGHTS, "boundary distances"):
        here = slice(done, done + len(labels))
        before[here] = boundary_distances(probed.model, images, config)
        for i, temperature in enumerate(config.temperatures):
            forward = partial(vmap(one_image), stepped(probed.model, images, labels, temperature, config.step_lr))
            after[i, here] = boundary_distances(forward, images, config)
            right[i, here] = forward(images).argmax(1) == labels
        done += len(labels)
    return {
        "boundary.before": before,
        "boundary.after": after,
        "boundary.right": right,
        "boundary.tried": torch.tensor([len(rows)]),
    }


def boundary_distances(forward: Callable[[Tensor], Tensor], images: Tensor, config: ProbeSettings) -> Tensor:
    """Return each image's distance to the decision boundary, shape [n].

    The distance is the smallest FGSM step size epsilon that changes the predicted class. The predicted class is the
    argmax of ``forward(images + epsilon * sign(gradient))``. ``gradient`` is the gradient of the cross-entropy with
    respect to ``images``. The cross-entropy's target is the class predicted at epsilon = 0. The distance is inf if no
    step size of at most ``attack_limit`` changes the predicted class.

    The search doubles epsilon until the predicted class changes, and then bisects the last interval. A change that is
    reversed between two tested values of epsilon is not detected. Pixels are not clipped.
    """
    with torch.enable_grad():
        moved = images.detach().requires_grad_()
        logits = forward(moved)
        decision = logits.detach().argmax(1)
        direction = torch.autograd.grad(_excess(logits, decision).sum(), moved)[0].sign()

    def narrowed(low: Tensor, high: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return the intervals [low, high] after testing the step sizes ``size`` [n].

        A step size that equals ``low`` leaves the interval unchanged.
        """
        changed = forward(images + size[:, None, None, None] * direction).argmax(1) != decision
        return torch.where(changed, low, size), torch.where(changed, size, high)

    low = images.new_zeros(len(images))
    high = torch.full_like(low, torch.inf)
    for doubling in range(DOUBLINGS + 1):
        size = config.attack_limit * 2.0 ** (doubling - DOUBLINGS)
        low, high = narrowed(low, high, torch.where(high.isinf(), size, low))
        if high.isfinite().all():
            break
    for _ in range(config.attack_steps):
        low, high = narrowed(low, high, torch.where(high.isinf(), low, (low + high) / 2))
    return high


def _excess(logits: Tensor, target: Tensor) -> Tensor:
    """Return log(exp(CE) - 1), shape [n]. Its gradient has the same sign as the gradient of CE(z, target).

    Unlike the gradient of CE, this gradient does not vanish if the target's probability rounds to 1, which happens
    after a step at a low temperature.
    """
    of_target = target[:, None]
    return logits.scatter(1, of_target, -torch.inf).logsumexp(1) - logits.gather(1, of_target)[:, 0]


def stepped(model: nn.Module, images: Tensor, labels: Tensor, temperature: float, lr: float) -> Tensors:
    """Take an SGD step on each of n images separately; return the new parameters by name, each of shape [n, ...].

    The loss of an image with logits z and label y at temperature T is CE(z / T, y). All n steps start from the model's
    current parameters. The model must be in evaluation mode.
    """
    # The model is in evaluation mode, because BatchNorm cannot compute statistics of a single image.
    weights: Tensors = dict(model.named_parameters())

    def loss(weights: Tensors, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (image[None],)) / temperature, label[None])

    slopes = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    return {name: weights[name] - lr * slope for name, slope in slopes.items()}
