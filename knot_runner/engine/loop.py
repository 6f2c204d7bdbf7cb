"""The plain loop: one model after another, autograd, any model. The reference for faster executors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knot_runner import metrics
from knot_runner.engine.commit import Checkpoint
from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.requests import EncodedPart, Network, Predict, SampleLoss, Train
from knot_runner.engine.seeds import generator, keyed
from knot_runner.engine.store import Store
from knot_runner.models.bert import TextClassifier
from knot_runner.models.pretrained import load_pretrained
from knot_runner.models.tokens import Encoded, batches

#: (finished steps, all steps, short text) -> None
Report = Callable[[int, int, str], None]
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Place:
    """Where requests are executed: store, device, and the folder of relative model paths."""

    store: Store
    device: torch.device
    data_root: Path | None


@dataclass(frozen=True)
class _Rows:
    """One part, loaded: texts, the objective's tensors per row, and its loss."""

    texts: Encoded
    rows: dict[str, Tensor]
    loss: SampleLoss


def build_network(network: Network) -> TextClassifier:
    """The model, randomly initialised from torch's current seed."""
    return TextClassifier(network.spec, network.vocabulary, network.classes)


def train_network(request: Train, place: Place, work: Path, report: Report) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train ``request`` in folder ``work``, resuming after the last finished epoch. Returns weights and facts.

    The commits stay until the result is in the store, so that a kill in between costs nothing.

    The epoch kept is the best on the valid part; with ``select="loss"`` the untrained start (epoch 0) is a candidate
    too (knot.md 1.5). With ``training.select="last"`` it is the last. Raises
    :class:`DivergedError` at the first loss that is not finite.
    """
    parts = [_load_part(request, part, place) for part in (request.train, request.valid)]
    model = _start_model(request, place)
    settings = request.training
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    checkpoint = Checkpoint(work)
    commit = checkpoint.load()
    if commit.problem:
        print(commit.problem, file=sys.stderr, flush=True)
    best = _restore(commit.tensors, model, optimiser)
    values = dict(commit.values) or {"best_epoch": -1, "best_score": None, "seconds": 0.0}
    if commit.step < 0 and request.select == "loss":
        values.update(best_epoch=0, best_score=_score(request, model, parts[1], place.device, 0))
        best = _copy(model)
    for epoch in range(max(commit.step, 0) + 1, request.training.epochs + 1):
        began = time.monotonic()
        loss = _epoch(request, model, optimiser, parts[0], place.device, epoch, report)
        score = _score(request, model, parts[1], place.device, epoch)
        if settings.select == "last" or values["best_score"] is None or score > values["best_score"]:
            best = _copy(model)
            values.update(best_epoch=epoch, best_score=score)
        values["seconds"] += time.monotonic() - began
        row = {"epoch": epoch, "loss": loss, "valid": score, "seconds": round(time.monotonic() - began, 3)}
        tensors = _flatten(model, optimiser, best if values["best_epoch"] != epoch else None)
        checkpoint.save(epoch, tensors, values, [row])
    facts = {
        "epochs": checkpoint.log(),
        "seconds": values["seconds"],
        "select": request.select,
        "kept": settings.select,
    }
    facts |= {"best_epoch": values["best_epoch"], "best_score": values["best_score"]}
    return best, facts


@torch.no_grad()
def predict_network(request: Predict, place: Place, report: Report) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Logits (or features) of every text, in the texts' order."""
    began = time.monotonic()
    texts = Encoded(**_token_tensors(place.store.get(*request.tokens).tensors()))
    with torch.device(place.device):
        model = build_network(request.network)
    model.load_state_dict(place.store.get(*request.weights).tensors())
    output = _forward_all(model, texts, place.device, request.output, report)
    return {request.output: output}, {"seconds": time.monotonic() - began}


def _load_part(request: Train, part: EncodedPart, place: Place) -> _Rows:
    tokens = place.store.get(*part.tokens).tensors()
    inputs = {name: place.store.get(*ref).tensors() for name, ref in part.inputs.items()}
    rows, loss = request.objective.make(request.objective.settings, {"tokens": tokens, **inputs})
    return _Rows(Encoded(**_token_tensors(tokens)), rows, loss)


def _token_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensors[name] for name in ("ids", "offsets", "second")}


def _start_model(request: Train, place: Place) -> TextClassifier:
    torch.manual_seed(keyed(request.seed, "init", request.party))
    model = build_network(request.network)
    if request.start is not None:
        model.load_state_dict(place.store.get(*request.start).tensors())
    elif request.network.spec.weights != "scratch":
        load_pretrained(model, request.network.spec, place.data_root)
    return model.to(place.device)


def _epoch(
    request: Train, model: nn.Module, optimiser: torch.optim.Optimizer, part: _Rows, device: torch.device,
    epoch: int, report: Report,
) -> float:  # fmt: skip
    """One epoch; mean loss. Dropout and batch order are keyed by (seed, stage, party, epoch)."""
    names = (request.stage, request.party, epoch)
    torch.manual_seed(keyed(request.seed, "dropout", *names))
    order = batches(part.texts.lengths, request.training.batch, generator(request.seed, "order", *names))
    model.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for step, index in enumerate(order):
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in part.texts.batch(index).items()}
        rows = {name: tensor[index].to(device, non_blocking=True) for name, tensor in part.rows.items()}
        loss = part.loss(model(**batch), rows).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        total += loss.detach().double() * len(index)
        report((epoch - 1) * len(order) + step + 1, request.training.epochs * len(order), f"epoch {epoch}")
    mean = float(total) / len(part.texts)
    if not torch.isfinite(total):
        raise DivergedError(f"{request.stage} {request.party}: loss is not finite in epoch {epoch}")
    return mean


@torch.no_grad()
def _score(request: Train, model: nn.Module, part: _Rows, device: torch.device, epoch: int) -> float:
    """Larger is better: macro-F1, or minus the mean loss, on the valid part."""
    logits = _forward_all(model, part.texts, device, "logits")
    if not torch.isfinite(logits).all():
        raise DivergedError(f"{request.stage} {request.party}: predictions are not finite in epoch {epoch}")
    if request.select == "loss":
        return -float(part.loss(logits, part.rows).double().mean())
    table = metrics.confusion(logits.argmax(1).numpy(), part.rows["labels"].numpy(), request.network.classes)
    return metrics.macro_f1(table)


@torch.no_grad()
def _forward_all(
    model: nn.Module, texts: Encoded, device: torch.device, output: str, report: Report | None = None
) -> Tensor:
    model.eval()
    call = model if output == "logits" else model.features
    order = batches(texts.lengths, EVALUATION_BATCH, None)
    found = []
    for step, index in enumerate(order):
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in texts.batch(index).items()}
        found.append(call(**batch))
        if report is not None:
            report(step + 1, len(order), "")
    stacked = torch.cat(found).float().cpu()
    result = torch.empty_like(stacked)
    result[torch.cat(order)] = stacked
    return result


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _flatten(model: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor] | None) -> dict[str, Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"adamw.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    if best is not None:
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    return tensors


def _restore(tensors: dict[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Undo :func:`_flatten`; returns the best weights so far (empty before the first commit)."""
    if not tensors:
        return {}
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "adamw": {}, "best": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = tensor
    model.load_state_dict(groups["model"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in groups["adamw"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return groups["best"] or _copy(model)
