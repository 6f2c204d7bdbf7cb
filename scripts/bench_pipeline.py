"""Seconds a training epoch: the engine against a plain loop over the same model and the same batches.

Three ways to train one local model of `task=erc` on generated text, interleaved, medians: the engine (whole stage cost:
batching, selection on the valid part, commit to disk); a textbook PyTorch loop over the engine's batches with
`nn.TransformerEncoderLayer` as published; the same loop over shuffled, unsorted batches, as most code has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import torch
from process_tree import timed
from torch import Tensor, nn
from torch.nn import functional as F

from knot_runner import compose
from knot_runner.engine import loop
from knot_runner.engine.requests import Train
from knot_runner.engine.seeds import generator
from knot_runner.engine.store import Store
from knot_runner.methods.knot import plan_teachers
from knot_runner.models.bert import TextClassifier
from knot_runner.models.tokens import Encoded, batches
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.federations.texts import text_federation


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="as for knot-runner, e.g. task.source=local paths.data_dir=DIR")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        request, store = _request(folder, options.overrides)
        resources = loop.Resources(store, torch.device("cpu"), None)
        ways = {
            "engine": lambda: _engine(request, resources),
            "plain loop, the same batches": lambda: _plain(request, resources, sorted_batches=True),
            "plain loop, shuffled batches": lambda: _plain(request, resources, sorted_batches=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.repeats):
            for name, way in ways.items():
                seconds[name].append(way())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{request.party}: seconds an epoch, median of {options.repeats}, one thread")
    for name, value in medians.items():
        print(f"  {name:<30} {value:7.2f}   {value / medians['engine']:5.2f} x engine")


def _request(folder: str, overrides: list[str]) -> tuple[Train, Store]:
    (job,) = compose(["task=erc", "training.local.epochs=1", *overrides, f"paths.output_dir={folder}"])
    context = run_context(job, lambda *_: None, print)
    federation = text_federation(context, context.services.parties(context), None)
    request = plan_teachers(job.method, {}, federation)[0]
    assert isinstance(request, Train)
    return request, context.store


def _engine(request: Train, resources: loop.Resources) -> float:
    with tempfile.TemporaryDirectory() as work:
        return timed(lambda: loop.train_network(request, resources, Path(work), lambda *_: None))[0]


class _Published(TextClassifier):
    """The published head as its authors' code has it: the whole encoder layer, then [CLS]."""

    def features(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        output = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
        x = self.head.norm(output.last_hidden_state + output.hidden_states[0])
        return self.head.layer(x, src_key_padding_mask=~mask.bool())[:, 0]


def _plain(request: Train, resources: loop.Resources, sorted_batches: bool) -> float:
    network = request.network
    size = request.training.batch_size
    spec = dataclasses.replace(network.spec)
    model: nn.Module = _Published(spec, network.inputs, network.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=request.training.lr)
    parts = []
    for part in (request.train, request.valid):
        tensors = resources.store.get(*part.examples).tensors()
        parts.append((Encoded(tensors["ids"], tensors["offsets"], tensors["second"]), tensors["labels"]))
    texts, labels = parts[0]
    order = (
        batches(texts.lengths, size, generator(0, "bench"))
        if sorted_batches
        else torch.randperm(len(texts)).split(size)
    )
    began = time.perf_counter()
    for index in order:
        loss = F.cross_entropy(model.train()(**texts.batch(index)), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for index in torch.arange(len(parts[1][0])).split(loop.EVALUATION_BATCH):
            model.eval()(**parts[1][0].batch(index))
    return time.perf_counter() - began
