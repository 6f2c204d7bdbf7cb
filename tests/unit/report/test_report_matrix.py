"""Records and figures of distances between data sets: what can be believed, agreement by hand, and what is said."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from knot_runner.config.strict import digest
from knot_runner.records import write_result
from knot_runner.report.figures import data_distances
from knot_runner.report.records.distance import matrix_summary
from knot_runner.report.run_folders import Job
from knot_runner.report.statistics.association import agreement_of
from knot_runner.results import kind_problem
from tests.golden.messages import refuses

EXACT = [[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]


def result(matrix: list[list[float]] = EXACT, **changes: Any) -> dict[str, Any]:
    count = len(matrix)
    return {
        "task": "image_sets", "source": "local", "method": "dataset_distance", "seed": 0, "kind": "matrix",
        "status": "done", "solver": "exact", "names": [f"set {i}" for i in range(count)], "sizes": [50] * count,
        "groups": None, "pairs": count * (count - 1) // 2, "matrix": matrix, "notes": [],
        "seconds": {"total": 2.0, "distances": 1.5},
    } | changes  # fmt: skip


def job(
    root: Path, matrix: list[list[float]], solver: str = "federated", seed: int = 0, label: str = "",
    kind: str = "image_sets", samples: int = 50, groups: list[int] | None = None, **fedwad: Any,
) -> Job:  # fmt: skip
    """A finished run; ``label``: further swept settings."""
    otdd = {
        "solver": solver, "samples": samples, "precision": "float64",
        "fedwad": {"support": 10, "iterations": 5, "t": 0.5} | fedwad,
    }  # fmt: skip
    config = {"task": {"name": "image_sets", "kind": kind}, "method": {"otdd": otdd}, "partition": None}
    name = digest([otdd, seed, label], 12)
    made = Job(name, root / name, "image_sets", "dataset_distance", seed, label, config)
    made.folder.mkdir(parents=True)
    write_result(made.folder, result(matrix, solver=solver, seed=seed, groups=groups))
    return made


def scaled(factor: float) -> list[list[float]]:
    return (factor * np.array(EXACT)).tolist()


# ----------------------------------------------------------------------------------------------------------- records


def is_sound(found: dict[str, Any]) -> bool:
    return not kind_problem(found)


def test_a_whole_record_is_sound() -> None:
    assert is_sound(result()) and is_sound(result(groups=[0, 0, 1], solver="federated"))


@pytest.mark.parametrize("changes", [
    {"matrix": EXACT[:2]}, {"matrix": [row[:2] for row in EXACT]},
    {"matrix": [[0.0, 1.0, 2.0], [1.5, 0.0, 4.0], [2.0, 4.0, 0.0]]},
    {"matrix": [[0.5, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]},
    {"matrix": [[0.0, -1.0, 2.0], [-1.0, 0.0, 4.0], [2.0, 4.0, 0.0]]},
    {"matrix": [[0.0, float("inf"), 2.0], [float("inf"), 0.0, 4.0], [2.0, 4.0, 0.0]]}, {"matrix": "EXACT"},
    {"names": ["a", "b"]}, {"names": [1, 2, 3]}, {"solver": "guess"}, {"sizes": [50, 50]}, {"sizes": [50, 50, -1]},
    {"groups": [0, 1]}, {"seconds": {"total": 1.0}},
])  # fmt: skip
def test_records_that_cannot_be_believed(changes: dict[str, Any]) -> None:
    assert not is_sound(result(**changes))


def shown(found: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(matrix_summary("image_sets · exact · seed 0", found))
    return capture.get()


def test_summary_of_few_sets_is_a_grid() -> None:
    text = shown(result(notes=["set 9: left out"]))
    assert "set 2" in text and "4.0" in text and "set 9: left out" in text
    line = "exact optimal transport, centralised; 3 pairs of 3 data sets, 50 samples each; 1.5 s"
    assert line in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_summary_of_many_clients_tells_groups_apart() -> None:
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    far = np.where(np.equal.outer(groups, groups), 10.0, 1000.0) * (1 - np.eye(8))
    text = shown(result(far.tolist(), groups=groups, solver="federated", sizes=[5] * 4 + [9] * 4))
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert ["in", "one", "planted", "group", "4", "10.0", "10.0", "10.0"] in rows
    assert ["of", "two", "groups", "24", "1,000.0", "1,000.0", "1,000.0"] in rows
    assert "5 to 9 samples each" in text


# --------------------------------------------------------------------------------------------------------- agreement


def test_agreement_by_hand() -> None:
    """Exact 1, 2, 4; ours 3, 2, 8: ranks 2, 1, 3 for 1, 2, 3, so rho = 1 - 6 * 2 / 24; one of three orders turned."""
    found = agreement_of(np.array([3.0, 2.0, 8.0]), np.array([1.0, 2.0, 4.0]))
    assert found.spearman == pytest.approx(0.5)
    assert (found.kept, found.relations) == (2, 3)
    assert found.inflation == 2.0  # of 3, 1, 2


def test_no_agreement_where_there_is_no_order() -> None:
    some, flat = np.array([1.0, 2.0, 4.0]), np.ones(3)
    assert agreement_of(some, flat) is None and agreement_of(flat, some) is None
    assert agreement_of(some[:1], some[:1]) is None


# ----------------------------------------------------------------------------------------------------------- figures


def test_lines_compare_with_the_exact_run_of_the_same_seed_and_samples(tmp_path: Path) -> None:
    turned = [[0.0, 3.0, 2.0], [3.0, 0.0, 8.0], [2.0, 8.0, 0.0]]
    jobs = [
        job(tmp_path, EXACT, "exact"),
        job(tmp_path, EXACT, "exact", support=99),  # an exact distance has no S: the same, and counted once
        job(tmp_path, scaled(100), "exact", seed=1),
        job(tmp_path, scaled(3)),
        job(tmp_path, turned, seed=1),
        job(tmp_path, scaled(7), seed=2),  # no exact run of its seed
    ]
    path = tmp_path / "figure.png"
    lines = data_distances.matrix_figure(jobs, path, ["A note."])
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert lines[0] == "exact: all pairs 1.0 to 400.0, median 52.0"
    assert lines[1] == "FedWaD, S=10, K=5, t=0.5: all pairs 2.0 to 28.0, median 7.0"
    assert lines[2] == (
        "FedWaD, S=10, K=5, t=0.5: with the exact distances, Spearman 0.750 (0.500 to 1.000 over 2 seeds); 83% of 3 "
        "order relations kept; 1.51 times as large (median)"
    )
    rows = list(csv.DictReader(path.with_suffix(".csv").open()))
    assert len(rows) == 3 * 5 and rows[0] == {
        "setting": "exact", "seed": "0", "first": "set 0", "second": "set 1", "distance": "1"
    }  # fmt: skip


def test_settings_that_differ_are_in_the_titles(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, EXACT, label="partition=pairs, method.otdd.fedwad.t=0.5", kind="images"),
        job(tmp_path, scaled(3000), label="partition=shards, method.otdd.fedwad.t=0.5", kind="images"),
    ]
    first, second = data_distances.matrix_figure(jobs, tmp_path / "figure.png")
    assert first.startswith("partition=pairs, FedWaD, S=10, K=5, t=0.5: all pairs 1.0 to 4.0")
    assert second.startswith("partition=shards, FedWaD, S=10, K=5, t=0.5: all pairs 3,000.0 to 12,000.0")


def test_many_clients_are_drawn_by_planted_group(tmp_path: Path) -> None:
    groups = [1, 0, 1, 0, 2, 2, 0, 1, 2]
    far = np.where(np.equal.outer(groups, groups), 10.0, 1000.0) * (1 - np.eye(9))
    one, other = (job(tmp_path / str(s), far.tolist(), seed=s, kind="images", groups=groups) for s in (0, 1))
    write_result(one.folder, result(far.tolist(), solver="federated", groups=groups))
    lines = data_distances.matrix_figure([one, other], tmp_path / "figure.png")
    assert "in one planted group 10.0 to 10.0" in lines[0] and "of two groups 1,000.0 to 1,000.0" in lines[0]
    plain = job(tmp_path / "plain", far.tolist(), kind="images")
    assert len(data_distances.matrix_figure([plain], tmp_path / "plain.png")) == 1


def test_a_course_by_samples_with_several_supports(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, scaled(f), solver, samples=n, support=s)
        for n in (20, 50)
        for solver, s, f in (("exact", 2, 1), ("exact", 5, 1), ("federated", 2, 3), ("federated", 5, 2))
    ]
    path = tmp_path / "figure.png"
    lines = data_distances.distance_course(jobs, path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert "set 1 - set 2, exact: 4 at n=50" in lines
    assert "set 1 - set 2, FedWaD, S=2: 12 at n=50" in lines and "seconds, FedWaD, S=5: 0.5 at n=50" in lines
    rows = list(csv.DictReader(path.with_suffix(".csv").open()))
    assert {row["n"] for row in rows} == {"20", "50"} and {row["seeds"] for row in rows} == {"1"}
    assert len(rows) == 2 * (3 + 1) * 3


def test_a_course_over_many_pairs_is_their_mean(tmp_path: Path) -> None:
    many = (1.0 - np.eye(5)).tolist()
    jobs = [job(tmp_path, many, iterations=k, seed=s) for k in (1, 3) for s in (0, 1)]
    lines = data_distances.distance_course(jobs, tmp_path / "figure.png")
    assert lines == ["mean of 10 pairs, FedWaD: 1 at K=3", "seconds, FedWaD: 0.15 at K=3"]


def test_figures_refuse_what_they_cannot_draw(tmp_path: Path) -> None:
    alone = job(tmp_path, EXACT)
    with refuses():
        data_distances.distance_course([alone], tmp_path / "figure.png")
    other = Job("probe", tmp_path / "probe", "image_sets", "dataset_distance", 0, "", alone.config)
    probe = {"kind": "probe", "temperatures": [1.0]}
    write_result(other.folder, result() | probe)
    for draw in (data_distances.matrix_figure, data_distances.distance_course):
        with refuses():
            draw([alone, other], tmp_path / "figure.png")
    missing = Job("none", tmp_path / "none", "image_sets", "dataset_distance", 0)
    with refuses():
        data_distances.matrix_figure([missing], tmp_path / "x.png", command="knot-runner experiment=x")
