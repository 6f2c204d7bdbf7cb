"""Figures of the temperature probe, by hand."""

import numpy as np
import pytest

from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.run_folders import Job
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.unit.report.made_runs import assert_drawn, csv_rows, save_file

#: Two temperatures, three images, of which two are misclassified; two classes.
ARRAYS = {
    "temperatures": np.array([4.0, 1.0]),
    "gradients.norm": np.array([[1, 2, 3], [2, 4, 9]], np.float32), "gradients.right": np.array([1, 0, 0], np.uint8),
    "boundary.before": np.array([0.1, 0.2], np.float32), "boundary.tried": np.array([3]),
    "boundary.after": np.array([[0.2, 0.5], [np.inf, 0.1]], np.float32),
    "boundary.right": np.array([[0, 1], [0, 0]], np.uint8),
    "softmax.probabilities": np.array([[0.4, 0.6], [0.1, 0.9]], np.float32),
    "softmax.label": np.array([0]), "softmax.row": np.array([7]),
}  # fmt: skip
LINES = {
    "gradients": ["T=4, right: median 1 of 2", "T=1, right: median 2 of 2", "T=4, wrong: median 2.5 of 4",
                  "T=1, wrong: median 6.5 of 4"],
    "boundary": ["T=4: median 0.2 over 4 images, 0 left out; the step corrects 50%",
                 "T=1: median -0.1 over 2 images, 2 left out; the step corrects 0%"],
    "softmax": ["T=4: b 0.600; true a 0.400", "T=1: b 0.900; true a 0.100"],
}  # fmt: skip


def probes(root, **changes):
    """Runs of two seeds with the same arrays."""
    jobs = [Job(f"s{seed}", root / f"s{seed}", "mnist", "temperature_probe", seed) for seed in (0, 1)]
    content = {"kind": "probe", "temperatures": [4.0, 1.0], "labels": {"names": ["a", "b"]}, "task": "mnist"}
    for job in jobs:
        write_content(job.folder, content | {"method": job.method, "seed": job.seed})
        save_file(ARRAYS | changes, job.folder / "probe.safetensors")
    return jobs


@pytest.mark.parametrize("name", LINES)
def test_probe_figure_pools_seeds(tmp_path, name):
    lines = FIGURES[name](probes(tmp_path), tmp_path / "figure.png")
    assert lines == [f"temperature_probe, {line}" for line in LINES[name]]
    assert_drawn(tmp_path / "figure.png")
    assert len(csv_rows(tmp_path / "figure.png")) == len(lines) * (2 if name == "softmax" else 1)


def test_boundary_figure_refuses_models_without_errors(tmp_path):
    none = {name: ARRAYS[name][..., :0] for name in ("boundary.before", "boundary.after", "boundary.right")}
    with refuses():
        FIGURES["boundary"](probes(tmp_path, **none), tmp_path / "figure.png")
