"""Images found by Adam on their pixels: they match the teacher's statistics, or records of its activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.distil import RecordsSynthesis, StatisticsSynthesis
from knot_runner.engine.seeds import generator
from knot_runner.methods.distil.learner import OutputReader
from knot_runner.methods.distil.synthesis.losses import activation_difference, image_prior, statistics_losses
from knot_runner.methods.distil.synthesis.records import LOGITS, sampled_activations, scales_of, tap_names_of
from knot_runner.methods.distil.synthesis.steps import ADAM_STATE

if TYPE_CHECKING:
    from knot_runner.methods.distil.synthesis.requests import MakeImages


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
