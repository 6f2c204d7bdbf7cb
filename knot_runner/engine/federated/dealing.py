"""Ordering a cohort's requests for workers, and splitting inference into equal pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, ROWS_OF_MANY, Inference, LocalTraining, Trained

EngineRequest = LocalTraining | Inference
#: What a request comes to.
Result = Trained | Tensor
#: Executes requests, which are begun in order; results in the same order.
_Run = Callable[[list[Any]], list[Any]]


def train_longest_first(run: _Run, cohort: list[LocalTraining]) -> list[Trained]:
    """The results of ``cohort`` in its order. The longest training begins first, so that the last to end is short."""
    longest = sorted(range(len(cohort)), key=lambda i: -local.steps(cohort[i].recipe, len(cohort[i].rows)))
    found = run([cohort[i] for i in longest])
    return [result for _, result in sorted(zip(longest, found, strict=True), key=lambda pair: pair[0])]


def infer_in_pieces(run: _Run, requests: list[Inference]) -> list[Tensor]:
    """Logits [n, classes] of every request, by pieces of INFERENCE_ROWS or ROWS_OF_MANY examples, whatever the number
    of workers."""
    parts = [request.rows.split(ROWS_OF_MANY if request.many else INFERENCE_ROWS) for request in requests]
    pieces = [replace(request, rows=part) for request, own in zip(requests, parts, strict=True) for part in own]
    found = iter(run(pieces))
    return [torch.cat([next(found) for _ in own]) for own in parts]
