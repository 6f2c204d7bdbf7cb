"""Everything that is to be known of a GPU, in one command and one table, in under nine minutes.

First checks (``gpu_checks.py``): the stacked engine equals the loop, CUDA graphs, bf16, tf32, memory that runs out,
several devices. Then seconds: a round of W1 (CNN), W2 (MLP) and W4 (ResNet-18) by engine and
precision, a KNOT run, the Sinkhorn loss, a matrix of distances. What does not begin
within ``--minutes`` is left out, and the table says so; so it does of what failed, and the exit code is 1 then.

python scripts/bench.py gpu --out gpu.md
python scripts/bench.py gpu --cpu --quick      does the command itself work? needs no GPU
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bench_federation import cohort_requests
from gpu_checks import CHECKS, Absent
from process_tree import spread, timed
from workloads import PARTICIPANTS, WORKLOADS, Workload

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.config.settings.methods.transport import FedwadSettings, OtddSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.hardware import choose_device, prepare_device

#: Engine and precision of each line of a workload, on CUDA and on a CPU.
ON_CUDA = [("stacked", "float32"), ("stacked", "tf32"), ("stacked", "bf16"), ("loop", "float32")]
ON_CPU = [("lean", "float32"), ("stacked", "float32"), ("loop", "float32")]
TIMED, JOBS = ("W1", "W2", "W4"), (1, 8, 64)


@dataclass(frozen=True)
class Row:
    """A line of the table: what was done, and what came of it; ``failed``: whether it should not have."""

    name: str
    found: str
    failed: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda:0", help="cuda:0, cuda:1, ...")
    parser.add_argument("--cpu", action="store_true", help="the same on the CPU, as a trial of the command")
    parser.add_argument("--quick", action="store_true", help="tiny work: does it run?")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="lines whose name holds one of these texts"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement, after one more")
    parser.add_argument("--minutes", type=float, default=9.0, help="what has not begun by then is left out")
    parser.add_argument("--out", type=Path, help="a file for the table, which is printed in any case")


def main(options: argparse.Namespace) -> None:
    device = choose_device("cpu" if options.cpu else options.device)
    prepare_device(_hardware(device, "stacked"))
    began = time.monotonic()
    rows = list[Row]()
    for name, work in _lines(device, options):
        if options.only and not any(text in name for text in options.only):
            continue
        left = 60 * options.minutes - (time.monotonic() - began)
        rows.append(Row(name, "left out: no time", True) if left < 0 else _done(name, work))
        print(f"{rows[-1].name}: {rows[-1].found}", file=sys.stderr, flush=True)
    table = _table(device, rows, time.monotonic() - began)
    print(table)
    if options.out is not None:
        options.out.write_text(table + "\n", encoding="utf-8")
    if any(row.failed for row in rows):
        raise SystemExit(1)


def _done(name: str, work: Callable[[], str]) -> Row:
    try:
        return Row(name, work())
    except Absent as absent:
        return Row(name, f"not here: {absent}")
    except Exception as problem:  # one line that fails must not cost the others
        return Row(name, f"FAILED: {type(problem).__name__}: {' '.join(str(problem).split())[:300]}", True)


def _table(device: torch.device, rows: list[Row], seconds: float) -> str:
    """Markdown."""
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    head = f"{what}, {os.cpu_count()} cores, {versions}; {seconds:.0f} s"
    lines = [f"| {row.name} | {row.found.replace('|', '/')} |" for row in rows]
    return "\n".join([head, "", "| what | found |", "|---|---|", *lines])


def _lines(device: torch.device, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and work of every line, the most wanted first."""
    for name, check in CHECKS.items():
        yield f"check: {name}", lambda check=check: check(device)
    for workload in TIMED:
        for engine, precision in ON_CUDA if device.type == "cuda" else ON_CPU:
            name = f"{workload}, {engine}, {precision}: s a round"
            yield name, lambda of=(workload, engine, precision): _rounds(device, *of, options)
    yield "KNOT (teachers, student): s a run", lambda: _knot(device, options)
    for texts, teachers in ((64, 4), (1024, 4)):
        name = f"Sinkhorn loss and gradient, {texts} x {teachers}: ms"
        yield name, lambda batch=(texts, teachers): _sinkhorn(device, *batch, options)
    yield "distances: s a matrix", lambda: _distances(options)


# ------------------------------------------------------------------------------------------------------------- seconds


def _workload(name: str, options: argparse.Namespace) -> Workload:
    workload = WORKLOADS[name]
    return replace(workload, sizes=[20] * PARTICIPANTS, epochs=1) if options.quick else workload


def _hardware(device: torch.device, engine: str, precision: str = "float32") -> HardwareSettings:
    workers = 1 if device.type == "cuda" else 0
    return HardwareSettings(
        device.type, str(device), threads=1, num_workers=workers, engine=engine, precision=precision, stack=0
    )


def _rounds(device: torch.device, name: str, engine: str, precision: str, options: argparse.Namespace) -> str:
    workload = _workload(name, options)
    data = workload.data()
    made = make_engine(_hardware(device, engine, precision), [workload.network], data, data)
    start = ClientModel(*flat.initial(workload.network, 0))  # of every round: its work is the same from any weights
    seconds = []
    try:
        for number in range(options.rounds + 1):
            cohort = cohort_requests(workload, number, start)
            seconds.append(timed(lambda cohort=cohort: made.train(cohort))[0])  # whose results are on the CPU
    finally:
        made.close()
    peak = f", {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB at most so far" if device.type == "cuda" else ""
    return f"{spread(seconds[1:], '.4g')} (the first {seconds[0]:.2f}{peak})"


def _knot(device: torch.device, options: argparse.Namespace) -> str:
    """A whole command on generated text, start-up and commits included."""
    small = [
        "task.max_examples=60",
        "model.hidden=16",
        "model.layers=1",
        "model.intermediate=32",
        "model.vocab_size=600",
    ]
    epochs = [f"training.{stage}.epochs={1 if options.quick else 3}" for stage in ("local", "pretrain", "distill")]
    hardware = ["hardware=cuda", f"hardware.device={device}"] if device.type == "cuda" else ["hardware=cpu"]
    with tempfile.TemporaryDirectory() as out:
        words = ["task=erc", "method=sinkhorn_e", *epochs, *hardware, f"paths.output_dir={out}"]
        command = [sys.executable, "-m", "knot_runner", *words, *(small if options.quick else [])]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])
        return f"{time.perf_counter() - began:.1f} (whole command, start-up included)"


def _sinkhorn(device: torch.device, texts: int, teachers: int, options: argparse.Namespace) -> str:
    from knot_runner.transport import Solver, transport_loss

    masses = torch.distributions.Dirichlet(torch.full((5,), 0.5))
    p = masses.sample((texts, 1)).to(device)
    q = masses.sample((texts, teachers)).to(device)
    points = torch.arange(5.0, device=device)[:, None]
    solver = Solver("newton", 0.001, 1e-6, 0.5)
    found = list[float]()
    for _ in range(5 * options.rounds + 1):
        start = p.clone().requires_grad_()
        began = time.perf_counter()
        transport_loss(start, q, points, solver).sum().backward()
        start.grad.cpu()  # waits for the device
        found.append(1000 * (time.perf_counter() - began))
    return spread(found[1:], ".4g")


def _distances(options: argparse.Namespace) -> str:
    """Federated distances between 20 sets of 600 samples, which are computed on the CPU whatever the device."""
    import bench_fedwad

    from knot_runner.transport.otdd import computed_distances

    fedwad = FedwadSettings("approximate", 10, 10, 0.5, 1.0)
    settings = OtddSettings("federated", "sqrt_frobenius", "root_diagonal", 10_000, "float64", fedwad)
    sets = bench_fedwad.Workload(*((4, 40) if options.quick else (20, 600))).sets()
    seconds, _ = timed(lambda: list(computed_distances(sets, settings, 0, os.cpu_count() or 1, {})))
    return f"{seconds:.2f} ({len(sets)} sets, {os.cpu_count()} cores)"
