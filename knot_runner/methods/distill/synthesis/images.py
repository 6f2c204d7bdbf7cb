"""Images synthesized from a trained teacher, in one of two ways.

- :class:`OptimizedImages`: Adam optimizes pixels so that the teacher's activations match its running statistics, or
  records of its activations on real images.
- :class:`GeneratedImages`: A generator is trained on a loss of the teacher's outputs (DAFL, Chen et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.distill import GeneratorSynthesis, RecordsSynthesis, StatisticsSynthesis
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.stages import Report, Trainee
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import take_step
from knot_runner.methods.distill.synthesis.records import LOGITS, sampled_activations, scales_of, tap_names_of
from knot_runner.models.images import Shape
from knot_runner.models.taps import NetworkOutputs, read_taps
from knot_runner.util.errors import DivergedError

if TYPE_CHECKING:
    from knot_runner.methods.distill.synthesis.requests import MakeImages

#: Number of training steps of a generator between two commits.
STEPS_AT_ONCE = 100


def image_prior(x: Tensor, tv: float, l2: float) -> Tensor:
    """Return the penalty ``tv * total_variation + l2 * mean_square`` of the images ``x`` [B, C, H, W], a scalar.

    The total variation is the mean squared difference between vertically adjacent pixels, plus the mean squared
    difference between horizontally adjacent pixels.
    """
    total_variation = (x[:, :, 1:] - x[:, :, :-1]).square().mean() + (x[..., 1:] - x[..., :-1]).square().mean()
    return tv * total_variation + l2 * x.square().mean()


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the model's modules that have running statistics, in the order of their definition."""
    return [module for module in model.modules() if getattr(module, "running_mean", None) is not None]


@contextmanager
def statistics_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Context manager that compares each batch normalization's inputs with its running statistics.

    It yields a list. In the ``with`` block, each forward pass of ``model`` appends one scalar per batch normalization.
    Let m be the mean of a channel's inputs, and v their biased variance. The scalar is
    (m - running mean)^2 + (v - running variance)^2, summed over channels.
    """
    losses: list[Tensor] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        mean = (values.mean(1) - module.running_mean).square().sum()
        losses.append(mean + (values.var(1, correction=0) - module.running_var).square().sum())

    hooks = [module.register_forward_pre_hook(compare) for module in batch_norms(model)]
    try:
        yield losses
    finally:
        for hook in hooks:
            hook.remove()


def activation_difference(taps: Tensors, wanted: Tensors, scales: dict[str, float]) -> Tensor:
    """Return the difference between actual and wanted activations, a scalar.

    The mean squared difference at each tap is divided by the tap's scale (:func:`scales_of`), and then summed over
    taps.

    Args:
        taps: Name of a tap -> actual activations [B, ...].
        wanted: Name of a tap -> wanted activations [B, D].
        scales: Name of a tap -> scale.
    """
    return torch.stack([(taps[name].flatten(1) - wanted[name]).square().mean() / scales[name] for name in wanted]).sum()


def generator_loss(outputs: NetworkOutputs, features: str, weights: GeneratorSynthesis) -> Tensor:
    """Return the loss of DAFL for a batch of generated images, a scalar.

    The loss is a weighted sum of three terms. The first term is the cross-entropy of the teacher's logits, with the
    argmax of these logits as the label. The second term is the negative mean absolute value of the teacher's
    activations at the tap ``features``. The third term is the negative entropy (in nats) of the teacher's mean
    probabilities.
    """
    certain = F.cross_entropy(outputs.logits, outputs.logits.argmax(1))
    active = outputs.taps[features].abs().mean()
    mean = outputs.logits.softmax(1).mean(0)
    mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)  # the slope of p log p at 0 is infinite
    entropy = -(mean * mean.log()).sum()
    return weights.one_hot * certain - weights.activation * active - weights.entropy * entropy


class Synthesizer(Trainee):
    """Base class for synthesizing images.

    Attributes:
        model: The frozen teacher, in evaluation mode.
        mean, std: The mean and standard deviation of the teacher's training images, each [C, 1, 1].
    """

    epochs: int

    def __init__(self, request: MakeImages, model: nn.Module, device: torch.device, report: Report) -> None:
        self.request, self.model, self.device, self.report = request, model, device, report
        self.mean, self.std = torch.tensor([request.mean, request.std], device=device)[:, :, None, None]

    def step(self, loss: Tensor, number: int, steps: int) -> float:
        """Take one optimizer step on the scalar ``loss``, and return the value of ``loss``.

        ``number`` is the number of this step, counted from 1. ``steps`` is the total number of steps.

        Raises:
            DivergedError: The loss is not finite.
        """
        take_step(self.optimizer, loss)
        if not torch.isfinite(loss):
            raise DivergedError(f"synthetic images: loss is not finite in step {number}")
        self.report(number, steps, f"step {number}")
        return float(loss.detach())

    def draws(self, *names: int | str) -> torch.Generator:
        """Return a random generator that is seeded by the seed of the request and by ``names``."""
        return generator(self.request.seed, "synthetic", self.request.party, *names)

    def weights(self) -> Tensors:
        """Return {}, because a synthesis stores its images (:meth:`images`) and no weights."""
        return {}

    def images(self) -> Tensor:
        """Return all images, as pixels in 0..1, float32 [N, C, H, W]."""
        raise NotImplementedError


class OptimizedImages(Synthesizer):
    """Images that are optimized batch by batch.

    Adam takes ``config.steps`` steps per batch, starting from noise. Each epoch optimizes one batch. The class of image
    i is i modulo the number of classes. ``module`` holds the finished images as the buffer ``finished`` [N, C, H, W].
    These images are normalized in the same way as the teacher's inputs.
    """

    def __init__(
        self, request: MakeImages, config: StatisticsSynthesis | RecordsSynthesis, model: nn.Module, records: Tensors,
        device: torch.device, report: Report,
    ) -> None:  # fmt: skip
        super().__init__(request, model, device, report)
        self.config = config
        self.records = records
        shape = request.network.shape
        taps = [name for name in tap_names_of(records) if name != LOGITS]
        self.read = read_taps(model, request.network, taps)
        self.scales = scales_of(records)
        self.lowest = (0 - self.mean) / self.std
        self.highest = (1 - self.mean) / self.std
        self.module = nn.Module()
        self.finished = torch.zeros((config.images, *shape), device=device)
        self.module.register_buffer("finished", self.finished)
        self.x = torch.zeros((config.batch_size, *shape), device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.x], lr=config.lr)
        self.epochs = -(-config.images // config.batch_size)

    def epoch(self, number: int) -> float:
        """Synthesize one batch, and return the loss of the last step.

        ``number`` is the number of the batch, from 1.
        """
        config = self.config
        first = (number - 1) * self.config.batch_size
        count = min(config.batch_size, config.images - first)
        labels = (torch.arange(count) + first) % self.request.network.classes
        activations = sampled_activations(self.records, labels, self.draws(number - 1, "activations"))
        wanted = {name: values.to(self.device) for name, values in activations.items()}
        self.optimizer.state.clear()
        with torch.no_grad():
            self.x[:count] = torch.randn((count, *self.request.network.shape), generator=self.draws(number - 1))
        for step in range(config.steps):
            loss = self._loss(self.x[:count], labels.to(self.device), wanted)
            value = self.step(loss, (number - 1) * config.steps + step + 1, self.epochs * config.steps)
            with torch.no_grad():  # no pixel is darker than black or lighter than white
                self.x.clamp_(self.lowest, self.highest)
        self.finished[first : first + count] = self.x[:count].detach()
        return value

    def _loss(self, x: Tensor, labels: Tensor, wanted: Tensors) -> Tensor:
        config = self.config
        prior = image_prior(x, self.config.tv, self.config.l2)
        if isinstance(config, RecordsSynthesis):
            output = self.read(x=x)
            return activation_difference({LOGITS: output.logits, **output.taps}, wanted, self.scales) + prior
        with statistics_losses(self.model) as differences:
            logits = self.model(x=x)
        label = F.cross_entropy(logits, labels)
        return config.label * label + config.statistics * torch.stack(differences).sum() + prior

    def images(self) -> Tensor:
        """Return all images, as pixels in 0..1, float32 [N, C, H, W]."""
        return (self.finished.cpu() * self.std.cpu() + self.mean.cpu()).clamp(0, 1)


#: The hidden features whose absolute values DAFL's loss maximizes: the input of the last layer.
FEATURES = "features"


def image_generator(latent: int, width: int, shape: Shape) -> nn.Module:
    """Return DAFL's generator, a network that maps noise [B, latent] to pixels [B, C, H, W].

    A linear layer creates ``width`` channels with a quarter of the image's height and width. Two blocks follow. Each
    block consists of upsampling and a 3x3 convolution. A third 3x3 convolution creates the pixels. Batch normalization
    always uses the statistics of the batch. Difference from DAFL: a sigmoid bounds the pixels to 0..1.
    """
    channels, rows, columns = shape
    half = math.ceil(rows / 2), math.ceil(columns / 2)
    quarter = math.ceil(rows / 4), math.ceil(columns / 4)
    fewer = max(1, width // 2)
    return nn.Sequential(
        nn.Linear(latent, width * math.prod(quarter)),
        nn.Unflatten(1, (width, *quarter)),
        # With the statistics of the batch, final images are generated in the same way as images during training.
        nn.BatchNorm2d(width, track_running_stats=False),
        nn.Upsample(half),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width, track_running_stats=False),
        nn.LeakyReLU(0.2),
        nn.Upsample((rows, columns)),
        nn.Conv2d(width, fewer, 3, padding=1),
        nn.BatchNorm2d(fewer, track_running_stats=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(fewer, channels, 3, padding=1),
        nn.Sigmoid(),
    )


class GeneratedImages(Synthesizer):
    """Images of a generator that is trained on the teacher's outputs (DAFL).

    An epoch has at most ``STEPS_AT_ONCE`` steps. ``module`` is the generator.
    """

    def __init__(
        self, request: MakeImages, config: GeneratorSynthesis, model: nn.Module, device: torch.device, report: Report
    ) -> None:
        super().__init__(request, model, device, report)
        self.config = config
        self.read = read_taps(model, request.network, [FEATURES])
        torch.manual_seed(keyed(request.seed, "generator", request.party))
        self.module = image_generator(config.latent, config.width, request.network.shape).to(device)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=config.lr)
        self.epochs = -(-config.steps // STEPS_AT_ONCE)

    def epoch(self, number: int) -> float:
        """Train the generator for one epoch, and return the loss of the last step.

        ``number`` is the number of the epoch, from 1.
        """
        config = self.config
        for step in range((number - 1) * STEPS_AT_ONCE, min(number * STEPS_AT_ONCE, config.steps)):
            pixels = self.module(self._latent(step, config.batch_size))
            outputs = self.read(x=(pixels - self.mean) / self.std)
            value = self.step(generator_loss(outputs, FEATURES, config), step + 1, config.steps)
        return value

    def _latent(self, number: int | str, count: int) -> Tensor:
        return torch.randn((count, self.config.latent), generator=self.draws(number)).to(self.device)

    def images(self) -> Tensor:
        """Return images of the trained generator, as pixels in 0..1, float32 [N, C, H, W]."""
        latent = self._latent("images", self.config.images)
        return torch.cat([self.module(z) for z in latent.split(self.config.batch_size)]).float().cpu()
