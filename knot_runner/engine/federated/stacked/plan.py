"""The planned steps of a stack of clients: clients grouped by structure, with their random draws as index tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import LocalTraining, Phase
from knot_runner.engine.objectives import tempered

#: Row number of padding: a batch position without an image.
PADDING = -1
#: Batches are padded to their full size up to this; a larger one (a whole client as one batch) only to the client's.
FULL_BATCH = 64


@dataclass(frozen=True)
class Structure:
    """Settings that clients must share to train in one program. Every other setting is one number per client.

    ``room``: number of batch positions in a step; ``trains``: the parameters that each phase trains; ``temperatures``:
    whether temperatures differ per sample; ``objective``: the objective's name and settings, None for cross-entropy;
    ``features``: whether the objective reads features.
    """

    room: int
    trains: tuple[str, ...]
    momentum: bool
    decay: bool
    decay_biases: bool
    proximal: bool
    control: bool
    temperatures: bool
    augment: str
    frozen_statistics: bool
    objective: str | None
    features: bool


@dataclass(frozen=True)
class PhasePlan:
    """The steps of one phase for K clients, on the CPU. S is the largest number of steps of a client.

    Attributes:
        rows: Rows [S, K, B] int64 of the training images, or ``PADDING``.
        positions: The images' positions [S, K, B] among the client's images (0 for padding); None for
            cross-entropy.
        crops: Augmentation [S, K, B, 3] int64 (down, across, flip), or None.
        temperatures: (T_i, scale_i) [S, K, B, 2], or None.
        active: [S]: the number k of active clients in each step. Clients 0..k-1 take part in the step.
    """

    trains: str
    rows: Tensor
    positions: Tensor | None
    crops: Tensor | None
    temperatures: Tensor | None
    active: list[int]


def structure_of(request: LocalTraining) -> Structure:
    """Return the structure of one client's training. The structure does not depend on other clients."""
    recipe, options = request.recipe, tempered(request.objective)
    whole = max(FULL_BATCH, 1 << max(len(request.rows) - 1, 0).bit_length())
    return Structure(
        room=min(recipe.batch_size, whole),
        trains=tuple(phase.trains for phase in _phases(request)),
        momentum=recipe.momentum != 0,
        decay=recipe.weight_decay != 0,
        decay_biases=recipe.decay_biases,
        proximal=recipe.proximal != 0,
        control=request.control is not None,
        temperatures=options is not None and options.hard_temperature is not None,
        augment=recipe.augment,
        frozen_statistics=recipe.frozen_statistics,
        objective=None if options is not None else f"{request.objective.name} {request.objective.settings}",
        features=request.objective.reads_features,
    )


def chunks(cohort: list[LocalTraining]) -> dict[Structure, list[int]]:
    """Return structure -> the positions in ``cohort`` of the clients that train together, longest training first.

    Ties are broken by client, round and seed, never by position, so that the order of the requests does not matter.
    """
    groups: dict[Structure, list[int]] = {}
    for position, request in enumerate(cohort):
        groups.setdefault(structure_of(request), []).append(position)
    for members in groups.values():
        members.sort(key=lambda position: _rank(cohort[position]))
    return groups


def plan_chunk(structure: Structure, chunk: list[LocalTraining], temperatures: list[Tensor] | None) -> list[PhasePlan]:
    """Return the steps of every phase for the clients in ``chunk``.

    ``temperatures``: (T_i, scale_i) [n, 2] of each client, if temperatures differ per sample.
    """
    per_client = temperatures or [None] * len(chunk)
    clients = [_client(structure, *pair) for pair in zip(chunk, per_client, strict=True)]
    phases = []
    for number, trains in enumerate(structure.trains):
        rows, positions, crops, per_sample = zip(*(client[number] for client in clients), strict=True)
        counts = torch.tensor([len(each) for each in rows])
        last = [int((counts > step).nonzero().max()) + 1 for step in range(int(counts.max()))]
        places = _stacked(positions, 0) if structure.objective is not None else None
        crops = _stacked(crops, 0) if structure.augment != "none" else None
        per_sample = _stacked(per_sample, 1) if temperatures else None
        phases.append(PhasePlan(trains, _stacked(rows, PADDING), places, crops, per_sample, last))
    return phases


def width(active: int) -> int:
    """Return ``active`` rounded up to three significant bits (1..8, 10, 12, 14, 16, 20, ...).

    Rounding limits the number of programs for a stack that shrinks client by client. The program of a step depends on
    ``active`` only.
    """
    grain = 1 << max(active.bit_length() - 3, 0)
    return -(-active // grain) * grain


def _rank(request: LocalTraining) -> tuple[int, int, int, int]:
    return -local.steps(request.recipe, len(request.rows)), request.client, request.round, request.seed


def _client(
    structure: Structure, request: LocalTraining, temperatures: Tensor | None
) -> list[tuple[Tensor | None, ...]]:
    """Return one tuple per phase of a client: rows and positions [S, B], crops [S, B, 3], temperatures [S, B, 2]."""
    draws = local.epochs(request, structure.augment)
    phases = []
    for phase in _phases(request):
        epochs = [_epoch(structure.room, request, temperatures, next(draws)) for _ in range(phase.epochs)]
        phases.append(tuple(None if each[0] is None else torch.cat(each) for each in zip(*epochs, strict=True)))
    return phases


def _phases(request: LocalTraining) -> list[Phase]:
    return [phase for phase in request.recipe.phases if phase.epochs]


def _epoch(
    room: int, request: LocalTraining, temperatures: Tensor | None, epoch: local.Epoch
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    crops = None
    if epoch.shifts is not None and epoch.flips is not None:
        crops = _batches(torch.cat([epoch.shifts, epoch.flips[:, None].long()], 1), room, 0)
    batched = None if temperatures is None else _batches(temperatures[epoch.order], room, 1)
    rows = _batches(request.rows[epoch.order], room, PADDING)
    return rows, _batches(epoch.order, room, 0), crops, batched


def _batches(values: Tensor, room: int, fill: float) -> Tensor:
    """Reshape ``values`` [n, ...] to [ceil(n / room), room, ...] and pad the last batch."""
    missing = -len(values) % room
    full = F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing), value=fill)
    return full.view(-1, room, *values.shape[1:])


def _stacked(clients: tuple[Tensor, ...], fill: float) -> Tensor:
    """Stack K tensors [S_k, ...] as [S, K, ...] and pad the shorter tensors."""
    return torch.nn.utils.rnn.pad_sequence(list(clients), padding_value=fill)
