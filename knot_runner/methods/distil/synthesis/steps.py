"""Steps of an optimisation that survive a kill: state and losses are committed every so often."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.loop import Report
from knot_runner.util.errors import DivergedError

#: Steps from one commit to the next.
COMMIT_EVERY = 100
#: What Adam keeps of each parameter.
ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Stepwise:
    """An optimisation: ``step(number)`` takes one step, from 0, and returns its loss; ``tensors()`` returns all
    changing state, ``restore`` sets it. Random draws of a step depend on its number alone."""

    step: Callable[[int], float]
    tensors: Callable[[], dict[str, Tensor]]
    restore: Callable[[dict[str, Tensor]], None]


def take_steps(work: Stepwise, folder: Path, steps: int, title: str, report: Report) -> dict[str, Any]:
    """Takes ``steps`` steps in all, resuming from the last commit in ``folder``; returns facts: ``seconds``, and the
    ``loss`` of the last step. Raises :class:`DivergedError` at the first loss that is not finite."""
    checkpoint = Checkpoint(folder)
    commit = checkpoint.load()
    if commit.problem:
        print(commit.problem, file=sys.stderr, flush=True)
    values = dict(commit.values) or {"seconds": 0.0, "loss": None}
    if commit.step >= 0:
        work.restore(commit.tensors)
    began = time.monotonic()
    for number in range(commit.step + 1, steps):
        values["loss"] = work.step(number)
        if not math.isfinite(values["loss"]):
            raise DivergedError(f"{title}: loss is not finite in step {number + 1}")
        report(number + 1, steps, f"step {number + 1}")
        if (number + 1) % COMMIT_EVERY == 0 or number + 1 == steps:
            now = time.monotonic()
            values["seconds"], began = values["seconds"] + now - began, now
            checkpoint.save(number, work.tensors(), values, [{"step": number + 1, "loss": values["loss"]}])
    return values
