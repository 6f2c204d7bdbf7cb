"""The temperature probe: how the softmax temperature changes gradients, decision boundaries and outputs.

The probe reproduces FLex&Chill section 3.1, Fig. 1 to 3. For each temperature, it computes the norm of each image's
gradient at the input layer (3.1.1, Fig. 1), and by how much one training step changes the image's distance to the
decision boundary (3.1.2, Fig. 2). Details that the paper does not specify are settings (:class:`ProbeSettings`). All
three figures use the same model.
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
    """Return the arrays of part ``number`` of a probe on ``data``, on the CPU; None after the last part.

    ``state``: the arrays of the previous parts.

    Part 0 is the model: ``model.weights`` [P], ``model.buffers`` [Q]. The other parts are arrays of
    ``probe.safetensors`` for K temperatures:

    - Part 1, N images of Fig. 1: ``gradients.norm`` float32 [K, N], ``gradients.right`` uint8 [N]
    - Part 2, M misclassified images of Fig. 2: ``boundary.before`` float32 [M], ``boundary.after`` float32 [K, M]
      (normalized pixels; inf: no change of decision up to ``attack_limit``), ``boundary.right`` uint8 [K, M] (whether
      the image is correct after the step), ``boundary.tried`` int64 [1] (images examined)
    - Part 3, Fig. 3: ``softmax.probabilities`` float32 [K, C], ``softmax.label`` and ``softmax.row`` int64 [1]

    Raises:
        UserError: The centralized training diverges, or no image has class ``shown_class``.
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
    """Return sorted rows of training images, drawn with the run's seed. The setting ``key`` is their maximum number."""
    order = torch.randperm(len(data.labels), generator=generator(context.settings.seed, "probe", key))
    return order[: getattr(context.method, key)].sort().values


@torch.no_grad()
def _softmax(config: ProbeSettings, probed: Probed, rows: Tensor, note: Note) -> Tensors:
    """Return softmax(z / T) of the first misclassified image of ``rows`` (Fig. 3).

    If every image is classified correctly, use the first image and print a warning. The paper does not say which image
    of the class is shown.
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
    """A ``model`` on ``device``, in evaluation mode with fixed parameters, and the training images."""

    model: nn.Module
    data: ImageData
    device: torch.device
    progress: Progress

    def batches(self, rows: Tensor, size: int = _ROWS, stage: str = "") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of ``rows``: normalized images of shape [n, C, H, W], float32, and labels, with n <= ``size``.

        If ``stage`` is given, report the progress under this name.
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
        """Return the logits of the images in ``rows``, shape [N, C]."""
        return torch.cat([self.model(images) for images, _ in self.batches(rows)])


def start_probe(context: RunContext, network: Network, data: ImageData, device: torch.device) -> Tensors:
    """Return the weights and buffers of the probed model, after ``warm_epochs`` epochs of centralized training at T=1.

    With ``warm_epochs=0``, these are the initial values. The paper says only "an initial neural network".
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
            raise UserError(f"central training with {recipe.lr} diverged. Use a smaller rate", "training.lr")
    return {"model.weights": weights, "model.buffers": buffers}


def gradient_arrays(config: ProbeSettings, probed: Probed, rows: Tensor) -> Tensors:
    """Return ``gradients.norm``, float32 [K, N], and ``gradients.right``, uint8 [N], for N ``rows``, on the CPU."""
    parts = []
    for images, labels in probed.batches(rows, stage="gradient norms"):
        parts.append(gradient_norms(probed.model, images, labels, config.temperatures))
    norms, right = zip(*parts, strict=True)
    return {"gradients.norm": torch.cat(norms, 1).cpu(), "gradients.right": torch.cat(right).to("cpu", torch.uint8)}


def gradient_norms(
    model: nn.Module, images: Tensor, labels: Tensor, temperatures: list[float]
) -> tuple[Tensor, Tensor]:
    """Return the norms of the gradients of CE(z / T, y), shape [K, n], and whether each of n images is correct, [n].

    Each of the K ``temperatures`` has one norm per image. The gradient is with respect to the weights (without bias) of
    the first linear or convolutional layer, and is computed from the gradient of this layer's output. One forward pass
    serves all temperatures. The model must process each image independently of the others, as in evaluation mode.
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
    """Return the gradient of CE(z / T, y) with respect to the logits z, (softmax(z / T) - y) / T, shape [n, C] (eq. 2).

    For the true class, p - 1 is computed as minus the sum of the other probabilities. This form stays accurate if p
    rounds to 1.
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
    """Return the arrays of the boundary (Fig. 2) for the M images of ``rows`` that the model misclassifies, on the CPU.

    The arrays are described in :func:`probe_part`, part 2.
    """
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
    """Return for each of n images the smallest FGSM step size epsilon that changes the predicted class, shape [n].

    This is the smallest epsilon at which the argmax of ``forward(images + epsilon * sign(gradient))`` differs. The
    gradient is that of the cross-entropy with the predicted class.

    For a misclassified image, a change to any other class counts. The upper end of the search interval doubles until
    the decision changes; bisection follows. A decision that changes and changes back within one interval [e, 2e] is not
    detected. Pixels are not clipped to their range. The result is inf if the decision does not change up to
    ``attack_limit``.
    """
    with torch.enable_grad():
        moved = images.detach().requires_grad_()
        logits = forward(moved)
        decision = logits.detach().argmax(1)
        direction = torch.autograd.grad(_excess(logits, decision).sum(), moved)[0].sign()

    def narrowed(low: Tensor, high: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return the intervals after testing the step sizes ``size`` [n]; a test at ``low`` changes nothing."""
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
    """Return log(exp(CE) - 1), shape [n], whose gradient has the same sign as the gradient of CE(z, target).

    Unlike the gradient of CE, this gradient does not vanish if the target's probability rounds to 1. This happens after
    a step at a low temperature.
    """
    of_target = target[:, None]
    return logits.scatter(1, of_target, -torch.inf).logsumexp(1) - logits.gather(1, of_target)[:, 0]


def stepped(model: nn.Module, images: Tensor, labels: Tensor, temperature: float, lr: float) -> Tensors:
    """Return the parameters after one SGD step on CE(z / T, y) with each of n images alone, each of shape [n, ...].

    All n steps start from the same parameters. The model is in evaluation mode, because BatchNorm cannot compute
    statistics of a single image.
    """
    weights: Tensors = dict(model.named_parameters())

    def loss(weights: Tensors, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (image[None],)) / temperature, label[None])

    slopes = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, labels)
    return {name: weights[name] - lr * slope for name, slope in slopes.items()}
