"""Seconds a round of federated averaging: the engines against plain PyTorch, on the same cohorts.

``plain`` is the loop that most code has (DataLoader, one process of several threads), ``good`` what a good user writes
(``good_loop.py``; ``good_compiled`` with torch.compile, ``good_bf16`` in bfloat16, which are other numbers), ``loop``
and ``lean`` are ours. Local training and averaging only, evaluation is off. Every measurement is a fresh
process that runs one round to warm up; the engines take turns, so that what else the machine does hits all of them.

W1: 50 clients with 1000 CIFAR-size images, CNN of 2.2 million parameters, 1 epoch. W2: 36 clients with 80 to 355 images
of 28x28, MLP 784-200-200-200-62, 10 epochs. W3: the same clients, femnist_dnn (512-256-128); W3m: with momentum .9.
W4: 20 clients with 250 images of 32x32, ResNet-18 with group normalization, 1 epoch; a round takes 40 s.
W5: 10 clients with 800 texts as long as utterances (ERC), BERT-tiny, 1 epoch of AdamW; good is of images alone. All:
10 clients a round, batch 16, SGD but for W5. "apart": how far the weights after the first round are from those of the
first engine with the engines' batches, as a share of that round's change; plain draws its own batches.

python scripts/bench.py federation --workload W1 W2 W3 W3m --rounds 3 --repeats 3 --engines plain good loop lean
"""

from __future__ import annotations

import argparse
import copy
import functools
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import process_tree
import torch
import torch.nn.functional as F
from good_loop import GoodLoop, Training
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset
from workloads import BATCH, LR, WORKLOADS, Workload

from knot_runner.engine.examples import ClientData, ImageData, TextData, normalized
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, Engine, LocalTraining, Phase, Recipe
from knot_runner.engine.federated.lean import Lean
from knot_runner.engine.federated.loop import Loop
from knot_runner.models import images as image_models
from knot_runner.models.network import build_network

#: round number -> weights [P]: trains the cohort of that round and averages
Round = Callable[[int], Tensor]
#: what an engine is compared with: the others
BASELINES = ("plain", "good", "good_compiled", "good_bf16")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=["W2"])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=["plain", "good", "lean"])
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each measurement, after one more")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="threads of plain, processes of the others")
    parser.add_argument("--peers", action="store_true", help="Flower and pfl-research too (bench_peers.py)")
    parser.add_argument("--peer-python", default="python", help="the Python where the peers are installed")


def main(options: argparse.Namespace) -> None:
    for name in options.workload:
        if WORKLOADS[name].network.reads_texts and any(engine.startswith("good") for engine in options.engines):
            raise SystemExit(f"bench: good is of images alone; --workload {name} --engines plain loop lean would fit")
        found: dict[str, list[Measured]] = {engine: [] for engine in options.engines}
        for _ in range(options.repeats):
            for engine in options.engines:
                found[engine].append(_measure(engine, name, options.rounds, options.cores))
        _print(name, found, options)
        if options.peers and not WORKLOADS[name].momentum:  # the peers' clients have none
            import bench_peers

            for row in bench_peers.rows(name, options.rounds, options.peer_python):
                print(f"  {row['name']:<30} {row['seconds']:9.3f} {row['cpu']:8.2f} {row['peak_mb']:8.0f}")


@dataclass(frozen=True)
class Measured:
    """Per timed round: wall seconds, CPU seconds of the process tree; the tree's peak memory in MB; and the weights
    [P] after the round that is not timed."""

    seconds: list[float]
    cpu: list[float]
    peak: float
    weights: Tensor


def _print(workload: str, found: dict[str, list[Measured]], options: argparse.Namespace) -> None:
    print(f"{workload}, {options.cores} cores: median (least-most) of {options.repeats} x {options.rounds} rounds")
    print("  engine                        s/round                 CPU s  peak MB    apart")
    start = flat.initial(WORKLOADS[workload].network, 0)[0]
    own = next((runs[0].weights for engine, runs in found.items() if engine != "plain"), start)
    for engine, runs in found.items():
        seconds, cpu = ([v for run in runs for v in getattr(run, key)] for key in ("seconds", "cpu"))
        apart = float((runs[0].weights - own).norm() / (runs[0].weights - start).norm())
        times = f"{process_tree.spread(seconds, '.3f'):>22} {process_tree.spread(cpu, '.2f'):>21}"
        print(f"  {engine:<14} {times} {max(run.peak for run in runs):8.0f} {apart:8.1e}")
    for engine in [name for name in found if name not in BASELINES]:
        for baseline in [name for name in BASELINES if name in found]:
            wall, busy = (_ratios(found[baseline], found[engine], key) for key in ("seconds", "cpu"))
            print(f"  {engine}: {wall} times as fast as {baseline}; by CPU time {busy}", flush=True)


def _ratios(slow: list[Measured], fast: list[Measured], key: str) -> str:
    """Median, least and most of the ratios of rounds that were measured in the same turn, by their number."""
    pairs = [zip(getattr(a, key), getattr(b, key), strict=True) for a, b in zip(slow, fast, strict=True)]
    found = [a / b for pair in pairs for a, b in pair]
    return process_tree.spread(found, ".2f")


def _measure(engine: str, workload: str, rounds: int, cores: int) -> Measured:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, engine, workload, rounds, cores))
    child.start()
    theirs.close()
    with process_tree.PeakPss(child.pid) as memory:
        seconds, cpu, weights = ours.recv()
    ours.send("done")
    child.join()
    return Measured(seconds, cpu, memory.peak, torch.from_numpy(weights))


def _child(pipe: Connection, engine: str, workload: str, rounds: int, cores: int) -> None:
    torch.manual_seed(0)
    play, end = ENGINES[engine](WORKLOADS[workload], cores)
    weights = play(0).numpy().copy()
    times = [process_tree.timed(functools.partial(play, number)) for number in range(1, rounds + 1)]
    pipe.send((*map(list, zip(*times, strict=True)), weights))
    pipe.recv()
    end()


def _plain(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    """As most code has it: DataLoader, autograd, torch.optim and PyTorch's pooling, one client after another, ``cores``
    torch threads."""
    torch.set_num_threads(cores)
    image_models.max_pool = functools.partial(F.max_pool2d, kernel_size=2)  # in this process, which trains nothing else
    network = workload.network
    datasets, collate = _datasets(workload, workload.data())
    model = build_network(network)
    flat.load_flat(model, *flat.initial(network, 0))

    def play(number: int) -> Tensor:
        states = []
        weights = []
        for client in workload.cohort(number):
            copied = copy.deepcopy(model)
            optimizer = _optimizer(workload, copied)
            for _ in range(workload.epochs):
                for *x, y in DataLoader(datasets[client], batch_size=BATCH, shuffle=True, collate_fn=collate):
                    optimizer.zero_grad()
                    F.cross_entropy(copied(*x), y).backward()
                    optimizer.step()
            states.append(copied.state_dict())
            weights.append(workload.sizes[client])
        share = [weight / sum(weights) for weight in weights]
        model.load_state_dict(
            {key: sum(s * state[key] for s, state in zip(share, states, strict=True)) for key in states[0]}
        )
        return flat.flat_vectors(model)[0]

    return play, lambda: None


def _datasets(workload: Workload, data: ClientData) -> tuple[list[Any], Callable[[list[Any]], list[Tensor]] | None]:
    """What each client's DataLoader reads, and how it makes a batch of texts."""
    if isinstance(data, TextData):
        texts = data.texts.ids.split(data.texts.lengths.tolist())
        return [[(texts[row], data.labels[row]) for row in rows.tolist()] for rows in workload.rows()], _padded
    images = normalized(data, torch.arange(len(data.labels)), torch.float32)
    return [TensorDataset(images[rows], data.labels[rows]) for rows in workload.rows()], None


def _padded(batch: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Ids, mask and segments [B, L] of texts padded to the longest, and labels [B]."""
    ids = pad_sequence([text.long() for text, _ in batch], batch_first=True)
    return [ids, ids > 0, torch.zeros_like(ids), torch.stack([label for _, label in batch])]


def _optimizer(workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    if workload.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=workload.momentum)


def _engine(engine: Engine, workload: Workload) -> tuple[Round, Callable[[], None]]:
    """Return a round of federated averaging on one of our engines, and what ends it."""
    start = ClientModel(*flat.initial(workload.network, 0))

    def play(number: int) -> Tensor:
        cohort = cohort_requests(workload, number, start)
        total = sum(len(request.rows) for request in cohort)
        trained = engine.train(cohort)
        start.weights.zero_()
        for request, client in zip(cohort, trained, strict=True):
            start.weights.add_(client.weights, alpha=len(request.rows) / total)
        return start.weights

    return play, engine.close


def cohort_requests(workload: Workload, number: int, start: ClientModel) -> list[LocalTraining]:
    """Return the requests of the clients of round ``number``."""
    training = Recipe((Phase(workload.epochs),), BATCH, False, LR, workload.momentum, optimizer=workload.optimizer)
    rows = workload.rows()
    nothing = torch.empty(0, dtype=torch.int64)
    return [
        LocalTraining(client, number, 0, start, rows[client], nothing, training) for client in workload.cohort(number)
    ]


def _good(workload: Workload, cores: int, **variant: bool) -> tuple[Round, Callable[[], None]]:
    """See ``good_loop``."""
    torch.set_num_threads(1)
    training = Training(workload.network, workload.sizes, workload.epochs, BATCH, LR, workload.momentum, **variant)
    loop = GoodLoop(training, workload.data(), cores)
    return lambda number: loop.play(workload.cohort(number), number), loop.end


def _loop(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    torch.set_num_threads(cores)
    data = workload.data()
    return _engine(Loop(workload.network, data, data, torch.device("cpu"), torch.float32), workload)


def _lean(workload: Workload, cores: int) -> tuple[Round, Callable[[], None]]:
    torch.set_num_threads(1)
    data = workload.data()
    test = ImageData(data.pixels[:1], data.labels[:1], data.mean, data.std) if isinstance(data, ImageData) else data
    return _engine(Lean([workload.network], data, test, torch.float32, cores, 1), workload)


#: name -> (workload, cores) -> (a round, what ends it)
ENGINES = {
    "plain": _plain,
    "good": _good,
    "good_compiled": functools.partial(_good, compiled=True),
    "good_bf16": functools.partial(_good, bf16=True),
    "loop": _loop,
    "lean": _lean,
}
