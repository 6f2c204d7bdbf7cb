"""Whole sweeps, one job after another and side by side under joblib, with one worker a job and one job a core.

``federated``: a grid of temperatures and seeds on FEMNIST, one after another with one worker.
``knot``: KNOT's eight methods, each cold in a folder of its own; a cold run may use all cores.

Seconds of whole commands, start-up included, interleaved; median (least-most). Results and rounds must be equal: else
it stops.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from process_tree import spread, timed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.cli.sweep.grids import results

ROOT = Path(__file__).resolve().parents[1]
METHODS = [f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench.py sweep``."""
    parser.add_argument("--grid", nargs="+", default=["federated", "knot"], choices=["federated", "knot"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few rounds and short texts, to see that it runs")
    parser.add_argument("overrides", nargs="*", help="of both grids, such as task.source=local")


def main(options: argparse.Namespace) -> None:
    """Print a line per grid: seconds of each way, and the ratio of joblib to the others in the same turn."""
    for name in options.grid:
        found: dict[str, list[float]] = {}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                for way, commands in _ways(name, options, Path(folder)).items():
                    found.setdefault(way, []).append(_seconds(commands))
                _compare(Path(folder))
        for way, seconds in found.items():
            ratios = [fast / slow for fast, slow in zip(found["joblib"], seconds, strict=True)]
            held = "" if way == "joblib" else f"; joblib takes {spread(ratios, '.2f')} of it"
            print(f"{name}: {way} {spread(seconds, '.1f')} s{held}", flush=True)


def _ways(name: str, options: argparse.Namespace, folder: Path) -> dict[str, list[list[str]]]:
    """Way -> its commands."""
    jobs = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={os.cpu_count()}", "hardware.num_workers=1"]
    return {
        "joblib": [GRIDS[name](options.quick, jobs, options, folder / "joblib")],
        "one after another": _apart(name, options, folder),
    }


def _federated(quick: bool, more: list[str], options: argparse.Namespace, out: Path) -> list[str]:
    size = ["training.rounds=2", "seed=0"] if quick else ["training.rounds=30", "seed=0,1,2"]
    temperatures = "4,0.05" if quick else "4,2,1,0.5,0.25,0.05"
    grid = ["task=femnist", "method=fedavg_chill", f"method.temperature={temperatures}", "training.lr=0.01", *size]
    return _command([*grid, *more], options, out)


def _knot(quick: bool, more: list[str], options: argparse.Namespace, out: Path) -> list[str]:
    epochs = 1 if quick else 2
    size = [f"training.{stage}.epochs={epochs}" for stage in ("local", "pretrain", "distill")]
    size += ["task.max_examples=60", "model.hidden=16", "model.layers=1"] if quick else ["task.max_examples=1200"]
    method = [] if any(word.startswith("method=") for word in more) else [f"method={','.join(METHODS)}"]
    return _command(["task=erc", "method.bias.texts=500", *size, *method, *more], options, out)


GRIDS: dict[str, Any] = {"federated": _federated, "knot": _knot}


def _command(grid: list[str], options: argparse.Namespace, out: Path) -> list[str]:
    return [sys.executable, "-m", "knot_runner", "-m", *grid, *options.overrides, f"paths.output_dir={out}"]


def _apart(name: str, options: argparse.Namespace, folder: Path) -> list[list[str]]:
    """The commands of the same runs, one after another: with one worker, or cold."""
    if name == "federated":
        return [_federated(options.quick, ["hardware.num_workers=1"], options, folder / "apart")]
    return [_knot(options.quick, [f"method={method}"], options, folder / "apart" / method) for method in METHODS]


def _seconds(commands: list[list[str]]) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = functools.partial(subprocess.run, check=True, capture_output=True, cwd=ROOT, env=environment)
    return sum(timed(functools.partial(run, command))[0] for command in commands)


def _compare(folder: Path) -> None:
    """Check that results and rounds under ``joblib`` equal those of the runs one after another."""
    apart = results(folder / "apart")
    for place in (folder / "apart").glob("*_*"):
        apart |= results(place)
    for name, found in results(folder / "joblib").items():
        if found != apart[name]:
            raise SystemExit(f"{name}: joblib gives another result")
