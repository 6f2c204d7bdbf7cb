"""Images synthesised from a trained teacher: found by Adam on their pixels, so that they match the teacher's statistics
or records of its activations; or of a generator that is trained against the teacher alone (Chen et al. 2019, DAFL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.distil import GeneratorSynthesis, RecordsSynthesis, StatisticsSynthesis
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.training import copy_weights
from knot_runner.methods.distil.learner import OutputReader
from knot_runner.methods.distil.synthesis.records import LOGITS, sampled_activations, scales_of, tap_names_of
from knot_runner.methods.distil.term import NetworkOutputs
from knot_runner.models.images import Shape

if TYPE_CHECKING:
    from knot_runner.methods.distil.synthesis.requests import MakeImages

#: What Adam keeps of each parameter.
ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


def total_variation(x: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels of ``x`` [B, C, H, W], below and beside each other, []."""
    return (x[:, :, 1:] - x[:, :, :-1]).square().mean() + (x[..., 1:] - x[..., :-1]).square().mean()


def image_prior(x: Tensor, tv: float, l2: float) -> Tensor:
    """``tv`` times the total variation and ``l2`` times the mean square of normalised images ``x`` [B, C, H, W], []."""
    return tv * total_variation(x) + l2 * x.square().mean()


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The model's modules with running statistics, in forward order of their definition."""
    return [module for module in model.modules() if getattr(module, "running_mean", None) is not None]


@contextmanager
def statistics_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, each forward pass appends to the list, for every batch normalisation, the squared differences
    of its input's mean and (biased) variance per channel from the running ones, summed over channels, []."""
    found: list[Tensor] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        mean = (values.mean(1) - module.running_mean).square().sum()
        found.append(mean + (values.var(1, correction=0) - module.running_var).square().sum())

    hooks = [module.register_forward_pre_hook(compare) for module in batch_norms(model)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def activation_difference(taps: dict[str, Tensor], wanted: dict[str, Tensor], scales: dict[str, float]) -> Tensor:
    """Mean squared difference of activations [B, ...] from the ``wanted`` ones [B, D], each tap's over its scale (the
    mean variance of its elements), summed over taps, []."""
    parts = [(taps[name].flatten(1) - wanted[name]).square().mean() / scales[name] for name in wanted]
    return torch.stack(parts).sum()


def generator_loss(outputs: NetworkOutputs, features: str, weights: GeneratorSynthesis) -> Tensor:
    """DAFL's loss of a batch of generated images, []: cross-entropy of the teacher's logits with their own argmax, less
    the mean size of its ``features``, less the entropy (in nats) of its mean probabilities."""
    certain = F.cross_entropy(outputs.logits, outputs.logits.argmax(1))
    active = outputs.taps[features].abs().mean()
    mean = outputs.logits.softmax(1).mean(0)
    mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)  # the slope of p log p at 0 is infinite
    entropy = -(mean * mean.log()).sum()
    return weights.one_hot * certain - weights.activation * active - weights.entropy * entropy


class OptimisedImages:
    """Batches of images, one after the other, each by ``hp.steps`` steps of Adam from noise; the target of image i is
    class i modulo the number of classes. ``model``: the teacher, frozen, in evaluation mode."""

    def __init__(
        self,
        request: MakeImages,
        hp: StatisticsSynthesis | RecordsSynthesis,
        model: nn.Module,
        records: dict[str, Tensor],
        device: torch.device,
    ) -> None:
        self.request, self.hp, self.model, self.records, self.device = request, hp, model, records, device
        self.taps = [name for name in tap_names_of(records) if name != LOGITS]
        self.read, self.scales = OutputReader(model, request.network, self.taps), scales_of(records)
        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (request.mean, request.std))
        self.lowest, self.highest = (0 - mean) / std, (1 - mean) / std
        self.finished: list[Tensor] = []
        self.batch = -1
        self.x = self.optimiser = None

    def step(self, number: int) -> float:
        """Step ``number`` of all; its loss."""
        batch, done = divmod(number, self.hp.steps)
        if batch != self.batch:
            self._begin(batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():  # no pixel is darker than black or lighter than white
            self.x.copy_(torch.minimum(torch.maximum(self.x, self.lowest), self.highest))
        if done + 1 == self.hp.steps:
            self.finished.append(self.x.detach().clone())
        return float(loss.detach())

    def _begin(self, batch: int, x: Tensor | None = None) -> None:
        """Begins ``batch`` from noise, or resumes from its images ``x``, and sets its targets."""
        first = batch * self.hp.batch
        count = min(self.hp.batch, self.hp.images - first)
        self.batch, labels = batch, (torch.arange(count) + first) % self.request.network.classes
        names = (self.request.seed, "synthetic", self.request.party, batch)
        noise = torch.randn((count, *self.request.network.inputs), generator=generator(*names))
        self.x = (noise if x is None else x).to(self.device).requires_grad_()
        self.labels = labels.to(self.device)
        activations = sampled_activations(self.records, labels, generator(*names, "activations"))
        self.wanted = {name: values.to(self.device) for name, values in activations.items()}
        self.optimiser = torch.optim.Adam([self.x], lr=self.hp.lr)

    def _loss(self) -> Tensor:
        prior = image_prior(self.x, self.hp.tv, self.hp.l2)
        if isinstance(self.hp, RecordsSynthesis):
            output = self.read({"x": self.x})
            return activation_difference({LOGITS: output.logits, **output.taps}, self.wanted, self.scales) + prior
        with statistics_losses(self.model) as differences:
            logits = self.model(x=self.x)
        label = F.cross_entropy(logits, self.labels)
        return self.hp.label * label + self.hp.statistics * torch.stack(differences).sum() + prior

    def tensors(self) -> dict[str, Tensor]:
        """Finished images, those of the current batch, and Adam's state of these."""
        state = self.optimiser.state[self.x]
        found = {name: torch.as_tensor(state[name]) for name in ADAM_STATE}
        found |= {"x": self.x.detach(), "batch": torch.tensor(self.batch)}
        return found | ({"finished": torch.cat(self.finished)} if self.finished else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Undo :meth:`tensors`."""
        self._begin(int(tensors["batch"]), tensors["x"])
        self.optimiser.state[self.x] = {name: tensors[name].to(self.device) for name in ADAM_STATE}
        self.optimiser.state[self.x]["step"] = tensors["step"]  # Adam keeps it on the CPU
        self.finished = [tensors["finished"].to(self.device)] if "finished" in tensors else []

    def images(self) -> Tensor:
        """All images, as pixels in 0..1, float32 [N, C, H, W]."""
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.request.mean, self.request.std))
        return (torch.cat(self.finished).cpu() * std + mean).clamp(0, 1)


#: The tap whose size DAFL's loss has: what the last layer reads.
FEATURES = "features"


class ImageGenerator(nn.Module):
    """z [B, latent] -> pixels in 0..1 [B, C, H, W]: a linear layer to maps of a quarter of the sides, and two times
    upsampling and a 3x3 convolution (DAFL's generator). Ours: a sigmoid at the end, since pixels have bounds."""

    def __init__(self, latent: int, width: int, shape: Shape) -> None:
        super().__init__()
        channels, height, width_of_image = shape
        self.sides = [tuple(-(-side // part) for side in (height, width_of_image)) for part in (4, 2, 1)]
        self.width = width
        self.linear = nn.Linear(latent, width * self.sides[0][0] * self.sides[0][1])
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, 1, 1) for before, after in ((width, width), (width, max(1, width // 2)))
        )
        self.last = nn.Conv2d(max(1, width // 2), channels, 3, 1, 1)
        # of the batch alone, so that images are made as they were in training
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(size, track_running_stats=False) for size in (width, width, max(1, width // 2))
        )

    def forward(self, z: Tensor) -> Tensor:
        x = self.norms[0](self.linear(z).view(len(z), self.width, *self.sides[0]))
        for conv, norm, sides in zip(self.convs, list(self.norms)[1:], self.sides[1:], strict=True):
            x = F.leaky_relu(norm(conv(F.interpolate(x, size=sides))), 0.2)
        return torch.sigmoid(self.last(x))


class GeneratedImages:
    """A generator, trained step by step; ``model``: the teacher, frozen, in evaluation mode."""

    def __init__(self, request: MakeImages, hp: GeneratorSynthesis, model: nn.Module, device: torch.device) -> None:
        self.request, self.hp, self.device = request, hp, device
        self.read = OutputReader(model, request.network, [FEATURES])
        torch.manual_seed(keyed(request.seed, "generator", request.party))
        self.generator = ImageGenerator(hp.latent, hp.width, request.network.inputs).to(device)
        self.optimiser = torch.optim.Adam(self.generator.parameters(), lr=hp.lr)
        self.mean, self.std = (torch.tensor(v, device=device)[:, None, None] for v in (request.mean, request.std))

    def step(self, number: int) -> float:
        """Step ``number``; its loss."""
        pixels = self.generator(self._latent(number, self.hp.batch))
        loss = generator_loss(self.read({"x": (pixels - self.mean) / self.std}), FEATURES, self.hp)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return float(loss.detach())

    def _latent(self, number: int | str, count: int) -> Tensor:
        names = (self.request.seed, "synthetic", self.request.party, number)
        return torch.randn((count, self.hp.latent), generator=generator(*names)).to(self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, and Adam's state of each."""
        found = {f"model.{name}": tensor for name, tensor in copy_weights(self.generator).items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            found |= {f"adam.{index}.{name}": torch.as_tensor(state[name]) for name in ADAM_STATE}
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Undo :meth:`tensors`."""
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        self.generator.load_state_dict(weights)
        count = len(list(self.generator.parameters()))
        state = {index: {name: tensors[f"adam.{index}.{name}"] for name in ADAM_STATE} for index in range(count)}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})

    @torch.no_grad()
    def images(self) -> Tensor:
        """Returns images of the trained generator, pixels in 0..1, float32 [N, C, H, W]."""
        latent = self._latent("images", self.hp.images)
        return torch.cat([self.generator(z) for z in latent.split(self.hp.batch)]).float().cpu()
