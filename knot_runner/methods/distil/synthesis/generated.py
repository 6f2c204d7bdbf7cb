"""Images of a generator that is trained against a frozen teacher alone (Chen et al. 2019, DAFL)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.distil import GeneratorSynthesis
from knot_runner.engine.epochs import copy_weights
from knot_runner.engine.seeds import generator, keyed
from knot_runner.methods.distil.learner import OutputReader
from knot_runner.methods.distil.synthesis.losses import generator_loss
from knot_runner.methods.distil.synthesis.steps import ADAM_STATE
from knot_runner.models.images import Shape

if TYPE_CHECKING:
    from knot_runner.methods.distil.synthesis.requests import MakeImages

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
