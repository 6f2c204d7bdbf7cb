"""Costs of the stages of a distillation: bytes that the owner of local data sends, and estimated FLOPs.

Let F be the FLOPs of one example's forward pass. Training takes 3 F per example and epoch, and inference takes F per
example. For texts, F is estimated at the data set's mean length. The estimate leaves out the terms' adapters, the
computation of automatic weights, and evaluation.
"""

from __future__ import annotations

import math

from knot_runner.config.settings.methods.distill import (
    AverageSchedule,
    DistillSchedule,
    MutualSchedule,
    SnapshotSchedule,
)
from knot_runner.engine.federated.flat import layout_of
from knot_runner.engine.flops import ExampleFlops, example_flops
from knot_runner.engine.requests import Predict, Ref, StageRequest, Train
from knot_runner.engine.store import Artifact, Store
from knot_runner.methods.distill.students import PickStudent, TrainStudents
from knot_runner.methods.distill.synthesis.requests import ReleaseRecords
from knot_runner.models.network import Network

#: Bytes of one parameter. Stages train in float32.
NUMBER_BYTES = 4


def sent_bytes(request: StageRequest, artifact: Artifact) -> int:
    """Return the number of bytes that the owner of local data sends after a stage.

    After local training, the owner sends the model. After the computation of activation records (statistics), the
    owner sends the records. The number is 0 after any other stage.
    """
    if isinstance(request, Train) and request.stage == "local":
        layout = layout_of(request.network)
        return NUMBER_BYTES * (layout.size + layout.buffer_size)
    if isinstance(request, ReleaseRecords):
        return int(artifact.info["released"]["bytes"])
    return 0


class StageCounter:
    """Counter of the FLOPs of a distillation's stages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], ExampleFlops | None] = {}

    def flops(self, request: StageRequest, artifact: Artifact) -> int | None:
        """Return the estimated FLOPs of a stage.

        The result is None for the synthesis of images, and for custom networks whose operations cannot be counted.
        """
        epochs = len(artifact.info.get("epochs", []))
        if isinstance(request, Train):
            return self._times(3 * epochs, request.network, request.train.examples)
        if isinstance(request, Predict | ReleaseRecords):
            return self._times(1, request.network, request.examples)
        if isinstance(request, TrainStudents):
            return self._students(request, epochs)
        if isinstance(request, PickStudent):
            return 0
        return None

    def _students(self, request: TrainStudents, epochs: int) -> int | None:
        """Return the FLOPs of students and teachers.

        Frozen teachers make one pass over the examples without augmentation, and one pass per epoch with augmentation.
        """
        examples = request.train.examples
        total = self._times(_passes(request.schedule) * epochs, request.network, examples)
        if request.augment == "none":
            epochs = 1
        for network, _ in request.teachers:
            more = self._times(epochs, network, request.originals or examples)
            if total is None or more is None:
                return None
            total += more
        return total

    def _times(self, passes: int, network: Network, examples: Ref) -> int | None:
        """Return the FLOPs of ``passes`` forward passes over all ``examples``."""
        info = self._store.get(*examples).info
        length = 0
        if network.reads_texts:
            count = info["texts"]
            length = math.ceil(info["tokens"] / count)
        else:
            count = info["images"]
        key = (repr(network), length)
        if key not in self._known:
            self._known[key] = example_flops(network, length)
        flops = self._known[key]
        if flops is None:
            return None
        return passes * count * flops.forward


def _passes(schedule: DistillSchedule) -> int:
    """Return the forward passes per example and epoch, summed over all students of a schedule.

    Training a student counts as 3 passes. A teacher that is the student's own past adds 1 pass. Students that teach
    each other add no pass, because their training outputs are reused.
    """
    if isinstance(schedule, MutualSchedule):
        return 3 * schedule.students
    if isinstance(schedule, AverageSchedule | SnapshotSchedule):
        return 4
    return 3
