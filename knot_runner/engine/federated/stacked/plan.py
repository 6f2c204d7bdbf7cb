"""Plan the steps of a stack of clients: group the clients by structure, and sample the batches of all their steps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import LocalTraining, Phase
from knot_runner.engine.objectives import tempered
from knot_runner.engine.tensor_file import Tensors

#: Row number that stands for padding, a position in a batch without an image.
PADDING = -1
#: For each input of a step, the value at padded positions. B is the number of positions in a batch. ``rows`` [B] int64:
#: the training images. ``positions`` [B] int64: the images' positions among the client's images, for other objectives
#: than cross-entropy. ``crops`` [B, 3] int64: the augmentation (down, across, flip). ``temperatures`` [B, 2]:
#: temperature T_i and loss factor scale_i of each sample, if temperatures differ per sample.
FILL = {"rows": PADDING, "positions": 0, "crops": 0, "temperatures": 1}
#: If the batch size is at most this number, all batches are padded to the batch size. A larger batch size, such as that
#: of one batch per client, is first limited to the smallest power of two that can hold all examples of the client.
FULL_BATCH = 64


@dataclass(frozen=True)
class Structure:
    """The settings that must be equal for clients to train in one stack.

    Other settings, such as the learning rate, may differ between the clients of a stack.

    Attributes:
        room: The batch size, including padding.
        trains: For each phase, the parameters that the phase trains.
        momentum: Whether the momentum is not 0.
        decay: Whether the weight decay is not 0.
        decay_biases: Whether weight decay also applies to biases.
        proximal: Whether the factor of the proximal term is not 0.
        control: Whether there is a control variate.
        temperatures: Whether temperatures differ between samples.
        augment: The augmentation.
        frozen_statistics: Whether training leaves running statistics unchanged.
        objective: The name and the settings of the objective; None for cross-entropy.
        features: Whether the objective reads features.
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
    """All steps of one phase for K clients, as tensors on the CPU. S is the largest step count among the clients.

    Attributes:
        trains: The parameters that the phase trains.
        inputs: The inputs of all steps, by name (:data:`FILL`). Each tensor has shape [S, K, B, ...], where B is the
            number of examples in a batch, including padding.
        active: For each of the S steps, a count k. The clients 0 to k-1 take part in the step.
    """

    trains: str
    inputs: Tensors
    active: list[int]


def structure_of(request: LocalTraining) -> Structure:
    """Return the :class:`Structure` of one client's training. The result does not depend on other clients."""
    recipe = request.recipe
    options = tempered(request.objective)
    objective = None
    per_sample = False
    if options is None:
        objective = f"{request.objective.name} {request.objective.settings}"
    else:
        per_sample = options.hard_temperature is not None
    whole = max(FULL_BATCH, 1 << max(len(request.rows) - 1, 0).bit_length())
    return Structure(
        room=min(recipe.batch_size, whole),
        trains=tuple(phase.trains for phase in _phases(request)),
        momentum=recipe.momentum != 0,
        decay=recipe.weight_decay != 0,
        decay_biases=recipe.decay_biases,
        proximal=recipe.proximal != 0,
        control=request.control is not None,
        temperatures=per_sample,
        augment=recipe.augment,
        frozen_statistics=recipe.frozen_statistics,
        objective=objective,
        features=request.objective.reads_features,
    )


def chunks(cohort: list[LocalTraining]) -> dict[Structure | None, list[int]]:
    """Group the requests of ``cohort`` by structure. Each group is a list of indices into ``cohort``.

    Requests that need the reference engine (``LocalTraining.is_plain`` is false) have the structure None. In a group,
    requests with more steps come first. Requests with the same number of steps are sorted by client, round and seed.
    """
    groups: dict[Structure | None, list[int]] = {}
    for position, request in enumerate(cohort):
        structure = None
        if request.is_plain:
            structure = structure_of(request)
        groups.setdefault(structure, []).append(position)
    for members in groups.values():
        members.sort(key=lambda position: _rank(cohort[position]))
    return groups


def plan_chunk(structure: Structure, chunk: list[LocalTraining], temperatures: list[Tensor] | None) -> list[PhasePlan]:
    """Return the plan of each phase for the clients in ``chunk``, which have the structure ``structure``.

    ``temperatures``: None if temperatures do not differ between samples. Otherwise, for each client, a tensor of shape
    [n, 2]. Row i holds the temperature T_i and the loss factor scale_i of the client's sample i.
    """
    per_client = temperatures or [None] * len(chunk)
    clients = [_client(structure, *pair) for pair in zip(chunk, per_client, strict=True)]
    phases = []
    for trains, parts in zip(structure.trains, zip(*clients, strict=True), strict=True):
        inputs = {}
        for name in parts[0]:
            inputs[name] = pad_sequence([part[name] for part in parts], padding_value=FILL[name])
        counts = torch.tensor([len(part["rows"]) for part in parts])
        active = [int((counts > step).nonzero().max()) + 1 for step in range(int(counts.max()))]
        phases.append(PhasePlan(trains, inputs, active))
    return phases


def width(active: int) -> int:
    """Return ``active`` rounded up to three significant bits (1 to 8, 10, 12, 14, 16, 20, ...).

    A step with ``active`` clients is padded to the returned number of clients. Rounding limits the number of
    different CUDA graphs.
    """
    grain = 1 << max(active.bit_length() - 3, 0)
    return -(-active // grain) * grain


# The rank does not contain the position in the cohort, so results do not depend on the order of the requests.
def _rank(request: LocalTraining) -> tuple[int, int, int, int]:
    return -local.steps(request.recipe, len(request.rows)), request.client, request.round, request.seed


def _client(structure: Structure, request: LocalTraining, temperatures: Tensor | None) -> list[Tensors]:
    """Return, for each phase, the inputs of a client's steps by name, each of shape [S, B, ...]."""
    draws = local.epochs(request, structure.augment)
    phases = []
    for phase in _phases(request):
        epochs: dict[str, list[Tensor]] = {}
        for epoch in itertools.islice(draws, phase.epochs):
            for name, values in _epoch(structure, request, temperatures, epoch).items():
                epochs.setdefault(name, []).append(values)
        phases.append({name: torch.cat(values) for name, values in epochs.items()})
    return phases


def _phases(request: LocalTraining) -> list[Phase]:
    return [phase for phase in request.recipe.phases if phase.epochs]


def _epoch(structure: Structure, request: LocalTraining, temperatures: Tensor | None, epoch: local.Epoch) -> Tensors:
    """Return the inputs of the S steps of an epoch by name, each of shape [S, B, ...]. The last batch is padded."""
    inputs = {"rows": request.rows[epoch.order]}
    if structure.objective is not None:
        inputs |= {"positions": epoch.order}
    if epoch.crops is not None:
        inputs |= {"crops": epoch.crops}
    if temperatures is not None:
        inputs |= {"temperatures": temperatures[epoch.order]}
    missing = -len(epoch.order) % structure.room
    batches = {}
    for name, values in inputs.items():
        full = F.pad(values, (0, 0) * (values.dim() - 1) + (0, missing), value=FILL[name])
        batches[name] = full.view(-1, structure.room, *values.shape[1:])
    return batches
