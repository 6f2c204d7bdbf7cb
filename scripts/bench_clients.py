"""A federation of thousands of writers at LEAF's sizes, from its json files to rounds: time to the first round, seconds
and memory of a round, and bytes of a commit, beside the same rounds among 60 writers.

3,550 writers have 805,000 images, whose files take 4 GB; they are written once below ``--folder``. Each line is a run
of the whole command. Memory is of all its processes: what belongs to them (anonymous and shared), without pages of
files, which the system takes back. A round's work depends on who is drawn, so rounds are compared by their steps.

The first run reads json, and keeps what it found for those that follow (``--cold``: each run begins without).

python scripts/bench.py clients --folder DIR --methods fedavg scaffold fedper
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import process_tree
from leaf_files import write_leaf

PARTICIPANTS = 50
FEW = 60
#: Seconds between looks at the memory, which the kernel counts page by page: often would take a core's time.
LOOK_EVERY = 2.0
METHODS = {"fedavg": [], "scaffold": ["training.momentum=0"], "fedper": [], "fedrep": ["training.local_epochs=2"]}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="where the images and the runs are written")
    parser.add_argument("--clients", type=int, default=3550)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["fedavg", "scaffold", "fedper"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--participants", type=int, default=PARTICIPANTS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="read the json for every run")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="worker processes")


@dataclass
class Measured:
    """Seconds until the first round begins, wall and CPU; seconds and steps of every later round; CPU ms a step of them
    all; the least and the largest MB of a commit's own state; peak MB of memory and of pages of files."""

    first: float
    first_cpu: float
    cpu_step: float = 0.0
    step: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    memory: float = 0.0
    pages: float = 0.0


def main(options: argparse.Namespace) -> None:
    if options.rounds < 3:
        raise SystemExit("bench: --rounds: 3 are the least, since steps are timed from the second round on")
    for clients in (FEW, options.clients):
        began = time.monotonic()
        images = write_leaf(options.folder / str(clients), clients)
        print(f"{clients} writers, {images:,} images: {time.monotonic() - began:.0f} s to write", flush=True)
    print(f"{options.rounds} rounds of {options.participants} clients, one local epoch, {options.cores} workers")
    print("                             to first round s (CPU)  s/round   ms/step (CPU)      MB files       commit")
    for method in options.methods:
        found: dict[int, list[Measured]] = {FEW: [], options.clients: []}
        for _ in range(options.repeats):
            for clients, runs in found.items():
                runs.append(_measure(method, clients, options))
                _print(method, clients, runs)
        few, many = (statistics.median([run.cpu_step for run in runs]) for runs in found.values())
        ratio = f"takes {many / few:.2f} of one among {FEW}, by CPU time"
        print(f"  {method}: a step among {options.clients} clients {ratio}", flush=True)


def _measure(method: str, clients: int, options: argparse.Namespace) -> Measured:
    out = options.folder / f"out-{clients}"
    for folder in out.glob("[!.]*"):
        if options.cold or folder.name != "artifacts":
            shutil.rmtree(folder)
    command = [
        sys.executable, "-m", "knot_runner", "task=femnist", "task.source=local", "task.local.train=[train]",
        "task.local.test=[test]", f"paths.data_dir={options.folder / str(clients)}", f"paths.output_dir={out}",
        f"method={method}", f"training.clients_per_round={options.participants}", f"training.rounds={options.rounds}",
        "training.local_epochs=1", f"training.evaluate_every={options.rounds}", "hardware=cpu",
        f"hardware.num_workers={options.cores}", *METHODS[method],
    ]  # fmt: skip
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    measured = Measured(0.0, 0.0)
    seen = set()
    busy = {0: 0.0}
    looked = 0.0
    while child.poll() is None:
        if time.monotonic() > looked + LOOK_EVERY:
            anonymous, pages = process_tree.memory(child.pid)
            measured.memory, measured.pages = max(measured.memory, anonymous), max(measured.pages, pages)
            looked = time.monotonic()
        rows = [row for log in out.glob("*/*/*/rounds.jsonl") for row in log.read_text().splitlines()]
        if rows and not measured.first:
            measured.first = time.monotonic() - began - json.loads(rows[0])["seconds"]
        busy.setdefault(len(rows), process_tree.cpu_seconds(child.pid))
        for path in out.glob("*/*/*/commit.json"):
            seen.add(_committed(path))
        time.sleep(0.1)
    if child.returncode:
        raise SystemExit(f"bench: {' '.join(command)}: ended with exit code {child.returncode}")
    (log,) = out.glob("*/*/*/rounds.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    measured.rounds = [row["seconds"] for row in rows[1:-1]]  # the last one is evaluated
    measured.step = [1000 * row["seconds"] / row["steps"] for row in rows[1:-1]]
    known = [number for number in sorted(busy) if 0 < number < len(rows)]
    steps = sum(row["steps"] for row in rows[known[0] : known[-1]])
    measured.cpu_step = 1000 * (busy[known[-1]] - busy[known[0]]) / steps
    measured.first_cpu = busy[known[0]] - measured.cpu_step * sum(row["steps"] for row in rows[: known[0]]) / 1000
    measured.commits = sorted(seen - {0.0})
    return measured


def _committed(record: Path) -> float:
    """MB of the state that the commit's ``record`` names, its parts left out; 0 where that was just replaced."""
    try:
        return (record.parent / json.loads(record.read_text())["file"]).stat().st_size / 1e6
    except (OSError, ValueError):
        return 0.0


def _print(method: str, clients: int, runs: list[Measured]) -> None:
    names = ("first", "first_cpu", "cpu_step", "memory", "pages")
    first, cpu, cpu_step, memory, pages = (statistics.median([getattr(run, name) for run in runs]) for name in names)
    rounds, step = ([v for run in runs for v in getattr(run, key)] for key in ("rounds", "step"))
    commits = [v for run in runs for v in run.commits] or [0.0]
    spread = f"{min(commits):.1f}-{max(commits):.1f}"
    print(
        f"  {method + f', {clients} clients':<24} {first:14.1f} ({cpu:7.1f}) {statistics.median(rounds):8.2f} "
        f"{statistics.median(step):7.2f} ({cpu_step:5.2f}) {memory:7.0f} {pages:5.0f} {spread:>12}",
        flush=True,
    )
