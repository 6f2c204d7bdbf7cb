"""The federated distance's records and figures, from synthetic runs: checks, summary, numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from knot_runner.config.strict import digest
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.federated_distance import distance_runtime, moving_measure
from knot_runner.report.records.distance import distance_summary
from knot_runner.report.run_folders import Job
from knot_runner.results import kind_problem
from tests.golden.messages import refuses
from tests.unit.report.sealing import save_file, seal


def record(mode: str = "approximate", seed: int = 0, support: int = 4, n: int = 20, **changes: Any) -> dict[str, Any]:
    """A run of three iterations: exact distance 2, value 2.2, closed form 4."""
    return {
        "kind": "distance", "task": "gaussians", "source": "generated", "method": "federated_distance", "seed": seed,
        "status": "done", "mode": mode, "iterations": 3, "samples": [n, n], "ratio": 1, "dimension": 2, "value": 2.2,
        "exact": 2.0, "closed_form": 4.0, "server_only": [1.9, 2.1, 2.0], "sums": [3.0, 2.6, 2.4],
        "values": [2.6, 2.4, 2.2], "support": [support] * 3, "spent": None, "notes": [],
        "seconds": {"total": 1.0, "federated": 0.5, "exact": 0.25},
    } | changes  # fmt: skip


def made(root: Path, label: str = "", **of_record: Any) -> Job:
    """A finished run with its measures: xi moves from the origin towards (2, 2)."""
    result = record(**of_record)
    run_id = digest({**result, "seconds": 0, "label": label}, 12)
    job = Job(run_id, root / run_id, "gaussians", "federated_distance", result["seed"], label)
    job.folder.mkdir()
    seal(job.folder, result)
    rng = np.random.default_rng(0)
    cloud = rng.normal(0, 0.3, (result["support"][0], result["dimension"])).astype(np.float32)
    arrays = {"mu": rng.normal(0, 0.3, (20, result["dimension"])), "nu": rng.normal(4, 0.3, (20, result["dimension"]))}
    for k in range(4):
        arrays |= {f"xi/{k}": cloud + 2 * k / 3, f"weights/{k}": np.full(len(cloud), 1 / len(cloud))}
    save_file({key: array.astype(np.float32) for key, array in arrays.items()}, job.folder / "measures.safetensors")
    return job


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.with_suffix(".csv").open()))


def shown(result: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(distance_summary("gaussians · x · seed 0", result))
    return out.getvalue()


# ------------------------------------------------------------------------------------------------- checks and summary


@pytest.mark.parametrize("changes", [{}, {"server_only": []}, {"closed_form": 0.0}, {"value": 0, "exact": 0}])
def test_sound_records(changes: dict[str, Any]) -> None:
    assert not kind_problem(record(**changes))


@pytest.mark.parametrize(("key", "value", "named"), [
    ("mode", "rough", "mode"), ("value", -1.0, "value"), ("exact", math.nan, "exact"),
    ("closed_form", None, "closed_form"), ("samples", [20], "samples"), ("samples", [20, 0], "samples"),
    ("dimension", "2", "dimension"), ("support", [4, 4], "support"), ("support", [4, 4, 0.5], "support"),
    ("values", [2.0], "values"), ("sums", [1, 2, math.inf], "sums"), ("iterations", 4, "support"),
    ("seconds", {"total": 1}, "seconds"), ("server_only", [1.0], "server_only"), ("server_only", "none", "server_only"),
])  # fmt: skip
def test_records_that_cannot_be(key: str, value: Any, named: str) -> None:
    assert kind_problem(record(**{key: value})).startswith(named)


def test_the_summary_by_hand() -> None:
    lines = shown(record(notes=["a [red]note[/red]"])).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[4:7]] == [
        ["federated,", "after", "3", "iterations", "2.2", "+10%", "0.5", "s"],
        ["exact,", "all", "samples", "at", "one", "place", "2", "0.25", "s"],
        ["closed", "form", "of", "the", "distributions", "4", "+100%"],
    ]
    assert [line.rstrip() for line in lines[8:]] == [
        "20 and 20 samples in 2 dimensions; approximate measures of 4 points",
        "a [red]note[/red]",
    ]


def test_the_summary_of_other_courses() -> None:
    text = shown(record(spent={"epsilon": 4.0, "delta": 1e-4}))
    assert "each client has spent epsilon 4, delta 0.0001 in all" in text
    assert "exact measures of 31 points" in shown(record("exact") | {"support": [20, 26, 31]})
    assert "%" not in shown(record(value=0.0, exact=0.0, closed_form=0.0))


# ------------------------------------------------------------------------------------------------------------- Fig. 3


def modes(root: Path, seeds: int = 1) -> list[Job]:
    labels = {"exact": "method.fedwad.mode=exact, method.fedwad.support=4", "approximate": "method.fedwad.support=4"}
    return [made(root, labels[mode], mode=mode, seed=seed) for mode in labels for seed in range(seeds)]


@pytest.mark.thorough
@pytest.mark.parametrize("figure", [moving_measure, distance_runtime])
def test_every_figure_is_drawn(tmp_path: Path, figure: Any) -> None:
    from matplotlib.image import imread

    path = tmp_path / "figure.png"
    lines = figure(modes(tmp_path, 2), path, notes=["a note"], command="knot-runner x")
    image = imread(path)
    height, width = np.array(image.shape[:2]) / figure_style.DPI  # inches
    assert 5 <= width <= 14 and 3 <= height <= 10
    assert (image[..., :3].min(2) < 0.9).mean() > 0.01
    assert lines and not any("nan" in line for line in lines) and table(path)


def test_excess_by_hand(tmp_path: Path) -> None:
    jobs = [made(tmp_path), made(tmp_path, seed=1, values=[2.6, 2.4, 2.4], sums=[3.0, 2.6, 2.6])]
    lines = moving_measure(jobs, tmp_path / "figure.png")
    assert lines == [
        "FedWaD-a, S=4, relative excess after the last iteration: FedWaD's value 0.15 [-0.49, 0.79], "
        "server alone (Theorem 3) 0 [0, 0], sum A (Theorem 2) 0.25 [-0.39, 0.89]"
    ]
    rows = {(row["quantity"], row["iteration"]): row for row in table(tmp_path / "figure.png")}
    assert len(rows) == 9 and rows["server_only", "1"]["mean"] == "0.05"  # 1.9 falls short of 2
    values = rows["values", "3"]
    assert [values[key] for key in ("method", "mean", "seeds")] == ["FedWaD-a, S=4", "0.15", "2"]
    # of 0.1 and 0.2, by Student's t with one degree of freedom
    assert [float(values[key]) for key in ("low", "high")] == pytest.approx([0.15 - 0.6353102, 0.15 + 0.6353102])


# ------------------------------------------------------------------------------------------------------- Fig. 2, 8, 9


def test_times_and_errors_by_hand(tmp_path: Path) -> None:
    slow = {"total": 9.0, "federated": 4.0, "exact": 0.75}
    jobs = [
        *(made(tmp_path, n=10, seed=seed) for seed in (0, 1)),
        made(tmp_path, n=20),
        made(tmp_path, n=20, seed=1, value=3.0),
        made(tmp_path, "method.fedwad.mode=exact", mode="exact", n=20, support=20, seconds=slow),
    ]
    lines = distance_runtime(jobs, tmp_path / "figure.png")
    assert lines == [
        # seed 0: two runs, .25 and .75 s; seed 1: .25 s
        "d=2, ratio 1:1, WD: n=20 in 0.375 s, relative error 0.5",
        "d=2, ratio 1:1, FedWaD-e: n=20 in 4 s, relative error 0.45",
        # |2.2 / 4 - 1| and |3 / 4 - 1|
        "d=2, ratio 1:1, FedWaD-a, S=4: n=20 in 0.5 s, relative error 0.35",
    ]
    rows = [row for row in table(tmp_path / "figure.png") if row["method"] == "FedWaD-a, S=4"]
    assert [(row["quantity"], row["n"], row["mean"]) for row in rows] == [
        ("seconds", "10", "0.5"), ("seconds", "20", "0.5"), ("error", "10", "0.45"), ("error", "20", "0.35"),
    ]  # fmt: skip


def test_distributions_that_are_one_have_no_relative_error(tmp_path: Path) -> None:
    with refuses():
        distance_runtime([made(tmp_path, closed_form=0.0)], tmp_path / "figure.png")


def test_records_are_sealed(tmp_path: Path) -> None:
    job = made(tmp_path)
    path = job.folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": 2.0}))
    with refuses():
        moving_measure([job], tmp_path / "figure.png")
