"""Loss landscapes of two clients in the plane of their fine-tuning (objective-conflict blog, docs/papers/soup.md).

The plane of a client contains theta_0, its model of the last round, theta_S, its last checkpoint, and theta_m, a
checkpoint between them. b1 is theta_S - theta_0, and b2 the part of theta_m - theta_0 that is orthogonal to b1, scaled
to the length of b1. A point (x, y) is the model theta_0 + x b1 + y b2. State, in addition to fine-tuning's:
``path/<k>/<step>`` of the drawn clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState, Folded
from knot_runner.methods.personalization import finetune
from knot_runner.methods.personalization.contract import Finished, MeasuredModels, PersonalFederation
from knot_runner.papers.soup.settings import LandscapeSettings

#: models of one client -> mean loss of each on every client's test examples [models, K], NaN of clients without any
Losses = Callable[[int, Iterable[ClientModel]], Tensor]
#: Weights along the segment from theta_0 to theta_S at which the barrier is looked for.
SEGMENT = [step / 20 for step in range(21)]


@dataclass(frozen=True)
class Plane:
    """A plane through ``origin`` [P], spanned by two orthogonal vectors [P] of equal length; all float64."""

    origin: Tensor
    first: Tensor
    second: Tensor

    @staticmethod
    def of(origin: Tensor, last: Tensor, between: Tensor) -> Plane:
        """Return the plane of three models [P].

        If ``between`` lies on the line of the others, there is no second direction, and ``second`` is 0.
        """
        start = origin.double()
        first, other = last.double() - start, between.double() - start
        second = other - (other @ first) / (first @ first) * first
        if second.norm() > 1e-9 * first.norm():
            second = second * (first.norm() / second.norm())
        return Plane(start, first, second)

    def place(self, theta: Tensor) -> tuple[float, float, float]:
        """Return (x, y, distance from the plane) of a model [P], in units of the length of ``first``."""
        offset, size = theta.double() - self.origin, self.first @ self.first
        x = float(offset @ self.first / size)
        y = float(offset @ self.second / size) if self.second.any() else 0.0
        return x, y, float((offset - x * self.first - y * self.second).norm() / size.sqrt())

    def at(self, x: float, y: float, dtype: torch.dtype) -> Tensor:
        """Return the model [P] at a point."""
        return (self.origin + x * self.first + y * self.second).to(dtype)


def plan(
    config: LandscapeSettings, state: FederatedState, federation: PersonalFederation, round: int
) -> list[LocalTraining]:
    """Return the fine-tuning of all clients, and that of the drawn clients once more, with stored checkpoints."""
    step = round - finetune.finetune_rounds(config, federation)
    if step < 0:
        return finetune.plan(config, state, federation, round)
    if step >= config.checkpoints:
        return []
    return [finetune.finetune_request(config, federation, state, client, step) for client in drawn(federation, state)]


def fold(
    config: LandscapeSettings, state: FederatedState, federation: PersonalFederation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Return fine-tuning's state with the paths."""
    state, row = finetune.fold(config, state, federation, round, requests, trained)
    step = round - finetune.finetune_rounds(config, federation)
    if step >= 0:
        state |= {f"path/{result.client}/{step + 1}": result.weights.clone() for result in trained}
    return state, row


def landscape_rounds(config: LandscapeSettings, federation: PersonalFederation) -> int:
    """Return the number of all rounds."""
    return finetune.finetune_rounds(config, federation) + config.checkpoints


def landscape_models(
    config: LandscapeSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    """Return the models to evaluate after ``round``; see :class:`Personalization`."""
    if round < finetune.finetune_rounds(config, federation):
        yield from finetune.finetune_models(config, federation, state, round)


def drawn(federation: PersonalFederation, state: FederatedState) -> list[int]:
    """Return the two clients whose fine-tuned models gain the most on their held-out examples."""
    sizes = torch.tensor([max(len(rows), 1) for rows in federation.rows("valid")], dtype=torch.float64)
    gains = (state["record/valid"][-1] - state["record/valid"][0]) / sizes
    return gains.argsort(descending=True, stable=True)[:2].sort().values.tolist()


def finish(
    config: LandscapeSettings, federation: PersonalFederation, state: FederatedState, losses: Losses
) -> Finished:
    """Return the losses over the plane of every drawn client, as arrays, and the barrier between its two ends."""
    arrays: dict[str, Tensor] = {}
    facts = []
    for number, client in enumerate(drawn(federation, state)):
        start = federation.start(client)
        path = [start.weights, *(state[f"path/{client}/{step}"] for step in range(1, config.checkpoints + 1))]
        plane = Plane.of(path[0], path[-1], path[config.between[number]])
        places = torch.tensor([plane.place(theta) for theta in path], dtype=torch.float64)
        axes = [_axis(places[:, axis], config.grid, config.margin) for axis in (0, 1)]
        points = [(x, y) for y in axes[1] for x in axes[0]]
        surface = _surface(plane, points, start, client, losses).view(config.grid, config.grid, 2)
        segment = _surface(plane, [(alpha, 0.0) for alpha in SEGMENT], start, client, losses)
        found = {
            "x": torch.tensor(axes[0]),
            "y": torch.tensor(axes[1]),
            "loss": surface,
            "path": places,
            "segment": segment,
            "path_loss": _of_models(client, [ClientModel(theta, start.buffers) for theta in path], losses),
        }
        arrays |= {f"landscape/{client}/{name}": value for name, value in found.items()}
        own, others = (barrier(column) for column in segment.unbind(1))
        facts.append({"client": client, "barrier": own, "barrier_others": others})
    return arrays, {"landscape": facts, "barrier": max(one["barrier"] for one in facts)}


def barrier(losses: Tensor) -> float:
    """Return the largest height of the loss [S] along a segment above the straight line between its ends.

    It is negative if the loss lies below the line everywhere except at the ends.
    """
    weights = torch.linspace(0, 1, len(losses), dtype=losses.dtype)
    line = (1 - weights) * losses[0] + weights * losses[-1]
    return float((losses - line)[1:-1].max())


def _axis(values: Tensor, count: int, margin: float) -> list[float]:
    """Return ``count`` positions over the range of ``values``, extended by the share ``margin`` at both ends."""
    low, high = float(values.min()), float(values.max())
    more = margin * max(high - low, 0.5)
    return torch.linspace(low - more, high + more, count, dtype=torch.float64).tolist()


def _surface(
    plane: Plane, points: Sequence[tuple[float, float]], start: ClientModel, client: int, losses: Losses
) -> Tensor:
    """Return :func:`_of_models` for the models at ``points``, which are created while they are read."""
    models = (ClientModel(plane.at(x, y, start.weights.dtype), start.buffers) for x, y in points)
    return _of_models(client, models, losses)


def _of_models(client: int, models: Iterable[ClientModel], losses: Losses) -> Tensor:
    """Return the mean loss [models, 2] on the client's own test examples, and on the others', with equal weights."""
    table = losses(client, models)
    others = torch.cat([table[:, :client], table[:, client + 1 :]], 1).nanmean(1)
    return torch.stack([table[:, client], others], 1)


LANDSCAPE = RoundMethod(finetune.init, plan, fold, one_model=False)
