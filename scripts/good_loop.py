"""Federated averaging as a good user writes it: the strongest baseline of ``bench_federation`` in plain PyTorch.

Images stay in memory, normalized once, shared by one-thread processes that take clients from a queue, the longest
first; batches are gathered by index, the optimizer is fused, a CNN computes channels last, and each process adds its
clients to a mean in shared memory. ``compiled``: batches of full size go through ``torch.compile``. ``bf16``: the
forward pass is autocast to bfloat16. Clients, first weights and batches are those of the engines, so that the result
is comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue

import torch
import torch.nn.functional as F
from torch import Tensor, multiprocessing, nn

from knot_runner.engine.examples import ImageData, normalized
from knot_runner.engine.federated import flat
from knot_runner.engine.seeds import generator
from knot_runner.models.network import Network, build_network

#: (client, round number, share of the mean); None ends a process
Order = tuple[int, int, float] | None


@dataclass(frozen=True)
class Training:
    """How every client trains. ``sizes``: images of each, which lie one client after another."""

    network: Network
    sizes: list[int]
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    compiled: bool = False
    bf16: bool = False


@dataclass(frozen=True)
class Memory:
    """What the processes share: ``images`` [N, H, W, C] as the model sees them, ``labels`` [N], the global ``weights``
    [P], and each process's part of the next ones, ``sums`` [processes, P]."""

    images: Tensor
    labels: Tensor
    weights: Tensor
    sums: Tensor


class GoodLoop:
    """``processes`` of one thread each; :meth:`play` is a round."""

    def __init__(self, training: Training, data: ImageData, processes: int) -> None:
        self._sizes = training.sizes
        images = normalized(data, torch.arange(len(data.labels)), torch.float32)
        images = images.permute(0, 2, 3, 1).contiguous()
        weights, _ = flat.initial(training.network, 0)
        self._memory = Memory(images, data.labels, weights, torch.zeros(processes, len(weights)))
        for tensor in vars(self._memory).values():
            tensor.share_memory_()
        context = multiprocessing.get_context("spawn")
        self._orders, self._done = context.SimpleQueue(), context.SimpleQueue()
        self._processes = [
            context.Process(target=_serve, args=(training, self._memory, number, self._orders, self._done), daemon=True)
            for number in range(processes)
        ]
        for process in self._processes:
            process.start()

    def play(self, clients: list[int], number: int) -> Tensor:
        """Train ``clients`` in round ``number`` and average by images; the new weights [P]."""
        total = sum(self._sizes[client] for client in clients)
        for client in sorted(clients, key=lambda client: -self._sizes[client]):
            self._orders.put((client, number, self._sizes[client] / total))
        for _ in clients:
            self._done.get()
        torch.sum(self._memory.sums, 0, out=self._memory.weights)
        self._memory.sums.zero_()
        return self._memory.weights

    def end(self) -> None:
        """End the processes."""
        for _ in self._processes:
            self._orders.put(None)
        for process in self._processes:
            process.join()


def _serve(training: Training, memory: Memory, number: int, orders: SimpleQueue[Order], done: SimpleQueue[int]) -> None:
    """Life of a process: train what the queue brings."""
    torch.set_num_threads(1)
    network = training.network
    model = build_network(network).to(memory_format=torch.channels_last)
    whole = torch.compile(model) if training.compiled else model
    fields = flat.layout_of(network).parameters
    images = memory.images.split(training.sizes)
    labels = memory.labels.split(training.sizes)
    start, sums = flat.views(memory.weights, fields), flat.views(memory.sums[number], fields)
    while (order := orders.get()) is not None:
        client, round, share = order
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
        train_client(model, whole, images[client], labels[client], training, generator(0, "local", round, client))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                sums[name].add_(parameter, alpha=share)
        done.put(client)


def train_client(
    model: nn.Module, whole: nn.Module, images: Tensor, labels: Tensor, training: Training, draws: torch.Generator
) -> None:
    """A client's epochs; ``whole`` is the model for batches of full size."""
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum, fused=True)
    for _ in range(training.epochs):
        for part in torch.randperm(len(labels), generator=draws).split(training.batch_size):
            x = images.index_select(0, part).permute(0, 3, 1, 2)  # channels last in memory
            with torch.autocast("cpu", torch.bfloat16, training.bf16):
                logits = (whole if len(part) == training.batch_size else model)(x)
            optimizer.zero_grad()
            F.cross_entropy(logits.float(), labels[part]).backward()
            optimizer.step()
