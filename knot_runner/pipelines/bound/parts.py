"""What a bound is measured on: the outputs of student and teachers on the transfer set, each text once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.execute import Executor
from knot_runner.engine.objectives import ObjectiveInputs
from knot_runner.engine.requests import Ref, StoredPart, Train
from knot_runner.engine.store import Store
from knot_runner.methods.losses import distillation
from knot_runner.pipelines.parties.trained_model import TrainedModel


@dataclass(frozen=True)
class StudentPart:
    """What the student and the teachers say of one part of the transfer set, each text once.

    ``p``, ``start`` [N, C] probabilities of the student and of the model that it started from, ``q`` [N, K, C] of the
    teachers; ``weights`` [N, K] as trained; ``rows`` [N] of the stored examples; ``dropped``: how many were left out,
    as they are there already.
    """

    p: Tensor
    start: Tensor
    q: Tensor
    weights: Tensor
    rows: Tensor
    dropped: int


def read_part(
    models: tuple[TrainedModel, TrainedModel], request: Train, part: StoredPart, rows: Tensor, executor: Executor
) -> StudentPart:
    """The stored examples ``rows`` of ``part``; targets and weights as the objective itself makes them. ``models``: the
    student, and what it started from."""
    store, settings = executor.place.store, request.objective.settings
    found = executor([model.predict("predictions", part.examples) for model in models])
    p, start = (torch.softmax(one.tensors()["logits"].double() / settings["student_temperature"], 1) for one in found)
    tensors = {name: store.get(*ref).tensors()["logits"] for name, ref in part.inputs.items()}
    made, _ = distillation(settings, ObjectiveInputs(torch.empty(0), tensors, lambda: found[1].tensors()["logits"]))
    q, weights = made["targets"][rows].double(), made["weights"][rows]
    return StudentPart(p[rows], start[rows], q, weights, rows, len(p) - len(rows))


def example_keys(store: Store, examples: Ref) -> list[bytes]:
    """What tells stored examples apart, as the model reads them: token ids, or pixels."""
    tensors = store.get(*examples).tensors()
    if "pixels" in tensors:
        return [image.tobytes() for image in tensors["pixels"].numpy()]
    ids, offsets, second = (tensors[name].numpy() for name in ("ids", "offsets", "second"))
    return [ids[offsets[i] : offsets[i + 1]].tobytes() + second[i].tobytes() for i in range(len(second))]


def first_rows(keys: list[bytes], seen: set[bytes]) -> tuple[Tensor, set[bytes]]:
    """Rows whose key was not there before, neither in ``seen`` nor above; and all keys seen by then."""
    seen, rows = set(seen), []
    for row, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int64), seen
