"""Seconds a round of federated averaging: the engines against a plain PyTorch loop, on the same cohorts.

Local training and averaging only, evaluation is off. Every measurement is a fresh process that runs one round to warm
up; the engines take turns, so that what else the machine does hits all of them. W1: 50 clients with 1000 CIFAR-size
images, CNN of 2.2 million parameters, 1 epoch. W2: 36 clients with 80 to 355 images of 28x28, MLP
784-200-200-200-62, 10 epochs. Both: 10 clients a round, batch 16, SGD.

python scripts/bench.py federation --workload W1 W2 --rounds 3 --repeats 3 --engines plain loop lean
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import process_tree
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from knot_runner.engine.federated import flat, local
from knot_runner.engine.federated.cohort import Blueprint, Engine, ImageData, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.models.images import build_image_model
from knot_runner.settings import CnnSettings, ConvSettings, MlpSettings

PARTICIPANTS = 10
BATCH = 16
LR = 1e-3


@dataclass(frozen=True)
class Workload:
    """``sizes``: images of each client."""

    blueprint: Blueprint
    sizes: list[int]
    epochs: int

    def cohort(self, number: int) -> list[int]:
        """Clients of round ``number``."""
        draws = torch.Generator().manual_seed(number)
        return torch.randperm(len(self.sizes), generator=draws)[:PARTICIPANTS].tolist()

    def rows(self) -> list[Tensor]:
        """Each client's rows of :meth:`data`."""
        return list(torch.arange(sum(self.sizes)).split(self.sizes))

    def data(self) -> ImageData:
        """Random images and labels."""
        draws, count = torch.Generator().manual_seed(1), sum(self.sizes)
        channels = self.blueprint.shape[0]
        pixels = torch.randint(0, 256, (count, *self.blueprint.shape), generator=draws, dtype=torch.uint8)
        labels = torch.randint(0, self.blueprint.classes, (count,), generator=draws)
        return ImageData(pixels, labels, torch.full((channels,), 0.5), torch.full((channels,), 0.25))


def _workloads() -> dict[str, Workload]:
    cnn = CnnSettings("cnn", "w1", [ConvSettings(32, 5, 2), ConvSettings(64, 5, 2)], [512], "logits")
    mlp = MlpSettings("mlp", "w2", [200, 200, 200], "logits")
    sizes = torch.randint(80, 356, (36,), generator=torch.Generator().manual_seed(2)).tolist()
    return {
        "W1": Workload(Blueprint(cnn, (3, 32, 32), 10), [1000] * 50, 1),
        "W2": Workload(Blueprint(mlp, (1, 28, 28), 62), sizes, 10),
    }


WORKLOADS = _workloads()

#: round number -> None: trains the cohort of that round and averages
Round = Callable[[int], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=["W2"])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=["plain", "lean"])
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each measurement, after one more")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="threads of plain, processes of lean")
    parser.add_argument("--peers", action="store_true", help="Flower and pfl-research too (bench_peers.py)")
    parser.add_argument("--peer-python", default="python", help="the Python where the peers are installed")


def main(options: argparse.Namespace) -> None:
    for name in options.workload:
        found: dict[str, list[Measured]] = {engine: [] for engine in options.engines}
        for _ in range(options.repeats):
            for engine in options.engines:
                found[engine].append(_measure(engine, name, options.rounds, options.cores))
        _print(name, found, options)
        if options.peers:
            import bench_peers

            for row in bench_peers.rows(name, options.rounds, options.peer_python):
                print(f"  {row['name']:<30} {row['seconds']:9.3f} {row['cpu']:8.2f} {row['peak_mb']:8.0f}")


@dataclass(frozen=True)
class Measured:
    """Per timed round: wall seconds, CPU seconds of the process tree; and the tree's peak memory in MB."""

    seconds: list[float]
    cpu: list[float]
    peak: float


def _print(workload: str, found: dict[str, list[Measured]], options: argparse.Namespace) -> None:
    print(f"{workload}, {options.cores} cores: median of {options.repeats} x {options.rounds} rounds")
    print(f"  {'engine':<30} {'s/round':>9} {'CPU s':>8} {'peak MB':>8} {'x plain':>9} {'by CPU':>7}")
    medians = {}
    for engine, runs in found.items():
        seconds, cpu = ([v for run in runs for v in getattr(run, key)] for key in ("seconds", "cpu"))
        medians[engine] = statistics.median(seconds), statistics.median(cpu)
        line = f"  {engine:<30} {medians[engine][0]:9.3f} {medians[engine][1]:8.2f} {max(r.peak for r in runs):8.0f}"
        if "plain" in medians:
            wall, busy = (a / b for a, b in zip(medians["plain"], medians[engine], strict=True))
            line += f" {wall:9.2f} {busy:7.2f}"
        print(line)


def _measure(engine: str, workload: str, rounds: int, cores: int) -> Measured:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, engine, workload, rounds, cores))
    child.start()
    theirs.close()
    with process_tree.PeakPss(child.pid) as memory:
        seconds, cpu = ours.recv()
    ours.send("done")
    child.join()
    return Measured(seconds, cpu, memory.peak)


def _child(pipe: Connection, engine: str, workload: str, rounds: int, cores: int) -> None:
    torch.manual_seed(0)
    play, end = ENGINES[engine](WORKLOADS[workload], cores)
    play(0)
    seconds, cpu = [], []
    for number in range(1, rounds + 1):
        began, busy = time.perf_counter(), process_tree.cpu_seconds(os.getpid())
        play(number)
        seconds.append(time.perf_counter() - began)
        cpu.append(process_tree.cpu_seconds(os.getpid()) - busy)
    pipe.send((seconds, cpu))
    pipe.recv()
    end()


def _plain(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    """As most code has it: DataLoader, autograd, optim.SGD, one client after another, ``cores`` torch threads."""
    torch.set_num_threads(cores)
    blueprint, data = workload.blueprint, workload.data()
    images = local.normalised(data, torch.arange(len(data.labels)), torch.float32)
    datasets = [TensorDataset(images[rows], data.labels[rows]) for rows in workload.rows()]
    del images
    model = build_image_model(blueprint.spec, blueprint.shape, blueprint.classes)

    def play(number: int) -> None:
        states, weights = [], []
        for client in workload.cohort(number):
            copied = copy.deepcopy(model)
            optimiser = torch.optim.SGD(copied.parameters(), lr=LR)
            for _ in range(workload.epochs):
                for x, y in DataLoader(datasets[client], batch_size=BATCH, shuffle=True):
                    optimiser.zero_grad()
                    F.cross_entropy(copied(x), y).backward()
                    optimiser.step()
            states.append(copied.state_dict())
            weights.append(workload.sizes[client])
        share = [weight / sum(weights) for weight in weights]
        model.load_state_dict(
            {key: sum(s * state[key] for s, state in zip(share, states, strict=True)) for key in states[0]}
        )

    return play, lambda: None


def _engine(engine: Engine, workload: Workload) -> tuple[Round, Callable[[], None]]:
    """Federated averaging on one of our engines."""
    weights, buffers = flat.initial(workload.blueprint, 0)
    recipe = Recipe((Phase(workload.epochs),), BATCH, False, LR)
    rows, nothing = workload.rows(), torch.empty(0, dtype=torch.int64)

    def play(number: int) -> None:
        cohort = [
            LocalTraining(client, number, 0, weights, buffers, rows[client], nothing, recipe)
            for client in workload.cohort(number)
        ]
        total = sum(len(request.rows) for request in cohort)
        trained = engine.train(cohort)
        weights.zero_()
        for request, client in zip(cohort, trained, strict=True):
            weights.add_(client.weights, alpha=len(request.rows) / total)

    return play, engine.close


def _loop(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    torch.set_num_threads(cores)
    data = workload.data()
    return _engine(Loop(workload.blueprint, data, data, torch.device("cpu"), torch.float32), workload)


def _lean(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    torch.set_num_threads(1)
    data = workload.data()
    test = ImageData(data.pixels[:1], data.labels[:1], data.mean, data.std)
    return _engine(Lean(workload.blueprint, data, test, torch.float32, workers=cores, threads=1), workload)


#: name -> (workload, cores) -> (a round, what ends it)
ENGINES = {"plain": _plain, "loop": _loop, "lean": _lean}
