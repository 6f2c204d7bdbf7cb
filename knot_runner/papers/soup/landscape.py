"""Loss landscapes of two clients around their fine-tuning (objective-conflict blog, docs/papers/soup.md).

A landscape shows a client's loss on a plane in weight space. The plane contains three models of the client:

- theta_0: the model after the last round
- theta_S: the last checkpoint of fine-tuning
- theta_m: a checkpoint between theta_0 and theta_S

The vector b1 is theta_S - theta_0. The vector b2 is the component of theta_m - theta_0 that is orthogonal to b1, scaled
to the length of b1. The point (x, y) of the plane is the model ``theta_0 + x * b1 + y * b2``.

In addition to the entries of fine-tuning, the state has ``path/<k>/<step>``: the checkpoints of each selected client k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.federation import FederatedState, Folded
from knot_runner.methods.personalization import finetune
from knot_runner.methods.personalization.contract import Finished, MeasuredModels, PersonalFederation
from knot_runner.papers.soup.settings import LandscapeSettings

#: Function of (client, models of this client). Returns the mean loss of each model on the test examples of each of K
#: clients, shape [models, K]; NaN for clients without test examples.
Losses = Callable[[int, Iterable[ClientModel]], Tensor]
#: Positions on the segment from theta_0 to theta_S at which the loss is measured to find the barrier.
SEGMENT = [step / 20 for step in range(21)]


@dataclass(frozen=True)
class Plane:
    """A plane in weight space through the point ``origin``, spanned by the vectors ``first`` and ``second``.

    The vectors are orthogonal and have equal length. All fields are float64 of shape [P], for P weights.
    """

    origin: Tensor
    first: Tensor
    second: Tensor

    @staticmethod
    def of(origin: Tensor, last: Tensor, between: Tensor) -> Plane:
        """Return the plane through three models, each a vector of P weights.

        If the three models lie on a line, ``second`` is 0.
        """
        start = origin.double()
        first = last.double() - start
        other = between.double() - start
        second = other - (other @ first) / (first @ first) * first
        if second.norm() > 1e-9 * first.norm():
            second = second * (first.norm() / second.norm())
        return Plane(start, first, second)

    def coordinates(self, theta: Tensor) -> tuple[float, float, float]:
        """Return (x, y, distance from the plane) of the weights ``theta`` [P], in units of the length of ``first``."""
        offset = theta.double() - self.origin
        size = self.first @ self.first
        x = float(offset @ self.first / size)
        y = float(offset @ self.second / size)
        return x, y, float((offset - x * self.first - y * self.second).norm() / size.sqrt())

    def at(self, x: float, y: float, dtype: torch.dtype) -> Tensor:
        """Return the weights, shape [P], of the model at the point (x, y)."""
        return (self.origin + x * self.first + y * self.second).to(dtype)


def plan(
    config: LandscapeSettings, state: FederatedState, federation: PersonalFederation, round: int
) -> list[LocalTraining]:
    """Return the training requests of a round.

    The first rounds fine-tune all clients. Later rounds repeat the fine-tuning of the two clients from :func:`drawn`.
    """
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
    """Return the state and the log row after a round of fine-tuning.

    A round that fine-tunes only the two clients from :func:`drawn` also adds their checkpoints to the state.
    """
    state, row = finetune.fold(config, state, federation, round, requests, trained)
    step = round - finetune.finetune_rounds(config, federation)
    if step >= 0:
        state |= {f"path/{result.client}/{step + 1}": result.weights.clone() for result in trained}
    return state, row


def landscape_rounds(config: LandscapeSettings, federation: PersonalFederation) -> int:
    """Return the number of rounds. Only two clients (:func:`drawn`) train in the last ``config.checkpoints`` rounds."""
    return finetune.finetune_rounds(config, federation) + config.checkpoints


def landscape_models(
    config: LandscapeSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    """Yield the models to evaluate after ``round``, as described in :class:`Personalization`.

    For rounds that fine-tune only the two clients from :func:`drawn`, there are no models.
    """
    if round < finetune.finetune_rounds(config, federation):
        yield from finetune.finetune_models(config, federation, state, round)


def drawn(federation: PersonalFederation, state: FederatedState) -> list[int]:
    """Return the indices of the two clients whose landscapes are drawn.

    Fine-tuning improves the held-out accuracy of these two clients most.
    """
    sizes = torch.tensor(list(map(len, federation.rows("valid"))), dtype=torch.float64).clamp(min=1)
    correct = state["record/valid"]
    gains = (correct[-1] - correct[0]) / sizes
    return gains.argsort(descending=True, stable=True)[:2].sort().values.tolist()


def finish(
    config: LandscapeSettings, federation: PersonalFederation, state: FederatedState, losses: Losses
) -> Finished:
    """Return arrays and facts about the clients from :func:`drawn`.

    The arrays hold the losses on each client's plane. The facts hold each client's barriers. Each barrier
    (:func:`barrier`) is measured on the segment between the client's models before and after fine-tuning.
    """
    arrays: dict[str, Tensor] = {}
    facts = []
    for number, client in enumerate(drawn(federation, state)):
        start = federation.start(client)
        path = [start.weights, *(state[f"path/{client}/{step}"] for step in range(1, config.checkpoints + 1))]
        plane = Plane.of(path[0], path[-1], path[config.between[number]])
        places = torch.tensor([plane.coordinates(theta) for theta in path], dtype=torch.float64)
        x = _axis(places[:, 0], config)
        y = _axis(places[:, 1], config)
        dtype = start.weights.dtype
        on_grid = (plane.at(*point, dtype) for point in torch.cartesian_prod(y, x).flip(1).tolist())
        on_segment = (plane.at(alpha, 0.0, dtype) for alpha in SEGMENT)
        segment = _losses_of(start, client, on_segment, losses)
        measured = {
            "x": x.float(),
            "y": y.float(),
            "loss": _losses_of(start, client, on_grid, losses).view(config.grid, config.grid, 2),
            "path": places,
            "segment": segment,
            "path_loss": _losses_of(start, client, path, losses),
        }
        arrays |= {f"landscape/{client}/{name}": value for name, value in measured.items()}
        on_own, on_others = segment.unbind(1)
        facts.append({"client": client, "barrier": barrier(on_own), "barrier_others": barrier(on_others)})
    return arrays, {"landscape": facts, "barrier": max(fact["barrier"] for fact in facts)}


def barrier(losses: Tensor) -> float:
    """Return how far the loss on a segment rises above the straight line between the first and the last loss.

    ``losses`` [S] are measured at equally spaced positions of the segment. The result is the maximum over the inner
    positions, and may be negative.
    """
    weights = torch.linspace(0, 1, len(losses), dtype=losses.dtype)
    line = (1 - weights) * losses[0] + weights * losses[-1]
    return float((losses - line)[1:-1].max())


def _axis(values: Tensor, config: LandscapeSettings) -> Tensor:
    """Return ``config.grid`` positions: the range of ``values``, extended on both sides by ``config.margin``."""
    low = float(values.min())
    high = float(values.max())
    more = config.margin * max(high - low, 0.5)
    return torch.linspace(low - more, high + more, config.grid, dtype=torch.float64)


def _losses_of(start: ClientModel, client: int, models: Iterable[Tensor], losses: Losses) -> Tensor:
    """Return two mean losses per model, shape [models, 2]: on the client's test examples, and on other clients' ones.

    Other clients have equal weights. The ``models`` (weights of shape [P]) use the running statistics of ``start``.
    """
    table = losses(client, (ClientModel(theta, start.buffers) for theta in models))
    others = torch.cat([table[:, :client], table[:, client + 1 :]], 1).nanmean(1)
    return torch.stack([table[:, client], others], 1)
