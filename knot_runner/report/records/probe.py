"""Reads the record of a temperature probe (``probe.safetensors``), pooled over the seeds of a setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from knot_runner.report import run_folders
from knot_runner.report.run_folders import Run

ARRAYS = "probe.safetensors"


@dataclass(frozen=True, eq=False)
class ProbeRecord:
    """Arrays as :func:`knot_runner.methods.temperature_probe.probe_arrays` names them: K temperatures, N images of
    Fig. 1, M of Fig. 2.

    ``norm`` [K, N], ``right`` [N]; ``before`` [M], ``after`` [K, M], ``put_right`` [K, M], ``tried`` images were looked
    at for M wrong ones; ``shares`` [K, C] of an image of class ``label``, row ``row`` of the training images.
    """

    temperatures: np.ndarray
    norm: np.ndarray
    right: np.ndarray
    before: np.ndarray
    after: np.ndarray
    put_right: np.ndarray
    tried: int
    shares: np.ndarray
    label: int
    row: int

    def moves(self) -> list[np.ndarray]:
        """Per temperature: distance after minus before, of the images that have both."""
        found = np.isfinite(self.before) & np.isfinite(self.after)
        return [self.after[k, found[k]] - self.before[found[k]] for k in range(len(self.temperatures))]


def read_probe(run: Run, command: str = "") -> ProbeRecord:
    """The arrays of one run. Raises :class:`UserError` naming the file when it is absent or damaged."""
    arrays = run_folders.arrays(run, ARRAYS, command)
    return ProbeRecord(
        arrays["temperatures"],
        arrays["gradients.norm"],
        arrays["gradients.right"].astype(bool),
        arrays["boundary.before"],
        arrays["boundary.after"],
        arrays["boundary.right"].astype(bool),
        int(arrays["boundary.tried"][0]),
        arrays["softmax.probabilities"],
        int(arrays["softmax.label"][0]),
        int(arrays["softmax.row"][0]),
    )


def pool_probes(runs: Sequence[Run], command: str = "") -> ProbeRecord:
    """Pool the images of all ``runs`` (seeds of one setting); the image of Fig. 3 is that of the lowest seed."""
    parts = [read_probe(run, command) for run in sorted(runs, key=lambda run: run.job.seed)]
    pooled = {
        key: np.concatenate([getattr(part, key) for part in parts], -1)
        for key in ("norm", "right", "before", "after", "put_right")
    }
    return replace(parts[0], tried=sum(part.tried for part in parts), **pooled)
