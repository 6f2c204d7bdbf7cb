"""Execute stage requests. A stage request asks for the training of one model, or for the predictions of one model.

:func:`run_one` returns the result of a request from the store. If the result is missing, it is first computed and
stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from knot_runner import metrics
from knot_runner.engine.examples import ClientExamples, InputBatch, batch_count, forward_all, stored_data
from knot_runner.engine.hardware import machine
from knot_runner.engine.objectives import LossRows, ObjectiveInputs, SampleLoss, make_loss
from knot_runner.engine.requests import (
    Predict,
    Ref,
    StageRequest,
    StoredPart,
    TensorsAndFacts,
    Train,
    request_key,
    request_title,
)
from knot_runner.engine.seeds import keyed
from knot_runner.engine.stages import Report, StageTraining, train_epochs
from knot_runner.engine.store import Artifact, Store
from knot_runner.engine.training import mean_loss
from knot_runner.models.network import Network, build_network
from knot_runner.models.taps import feature_reader
from knot_runner.util.errors import DivergedError

EVALUATION_BATCH = 256
#: (title, finished steps, all steps, short text) -> None
ProgressCallback = Callable[[str, int, int, str], None]
#: (folder of the store, key): the identity of a request
StageKey = tuple[str, str]


@dataclass(frozen=True)
class Resources:
    """Resources for executing requests. ``data_root``: the base folder of relative paths to pretrained models."""

    store: Store
    device: torch.device
    data_root: Path | None


def train_network(request: Train, resources: Resources, work: Path, report: Report) -> TensorsAndFacts:
    """Train the model of ``request``; return the weights of the selected epoch and a dict of facts about the training.

    The state is saved in the folder ``work`` after each epoch. A repeated call resumes from the last saved state.

    Raises:
        DivergedError: A loss or a validation prediction is not finite.
    """
    training = request.training
    return train_epochs(_Network(request, resources, report), work, training.epochs, training.select, request.select)


class _Network(StageTraining):
    """The training of one network on one objective."""

    def __init__(self, request: Train, resources: Resources, report: Report) -> None:
        seed = keyed(request.seed, "init", request.party)
        model = initial_model(resources, request.network, request.start, seed)
        examples, self._rows, self._loss = _load_part(request, request.train, resources, model)
        self._valid = None
        if request.valid is not None:
            self._valid = _load_part(request, request.valid, resources, model)
        self._select = request.select
        self._title = request_title(request)
        super().__init__(request, model, examples, report, request.stage, request.party)

    def losses(self, batch: InputBatch) -> Tensor:
        """Return the mean loss of the request's objective on ``batch``, a scalar."""
        return mean_loss(self.module, batch, self._loss, self._rows)

    @torch.no_grad()
    def score(self, epoch: int) -> float | None:
        """Return the macro-F1 or the negative mean loss on the validation examples; None without such examples."""
        if self._valid is None:
            return None
        examples, rows, loss = self._valid
        if self._select == "loss":
            logits = finite_logits(self.module, examples, self._title, epoch)
            return -float(loss(logits, rows).double().mean())
        return valid_score(self.module, examples, self._title, epoch)


@torch.no_grad()
def predict_network(request: Predict, resources: Resources, report: Report) -> TensorsAndFacts:
    """Return the logits or features of the request's examples, and a dict with the duration in seconds."""
    began = time.monotonic()
    examples = stored_examples(resources, request.examples)
    model = stored_model(resources, request.network, request.weights)
    call: Callable[..., Tensor] = model
    if request.output == "features":
        call = feature_reader(model, request.network)
    batches = batch_count(len(examples), EVALUATION_BATCH, False)
    output = forward_all(model, examples, EVALUATION_BATCH, call, lambda done: report(done, batches, ""))
    return {request.output: output.float().cpu()}, {"seconds": time.monotonic() - began}


def _load_part(
    request: Train, part: StoredPart, resources: Resources, model: nn.Module
) -> tuple[ClientExamples, LossRows, SampleLoss]:
    """Return the examples of ``part``, and the rows and the loss function of the objective for these examples."""
    examples = stored_examples(resources, part.examples)
    tensors = {name: resources.store.get(*ref).tensors()["logits"] for name, ref in part.inputs.items()}

    def start_logits() -> Tensor:
        return forward_all(model, examples, EVALUATION_BATCH)

    inputs = ObjectiveInputs(examples.labels.cpu(), tensors, start_logits)
    return examples, *make_loss(request.objective, inputs)


def stored_examples(resources: Resources, ref: Ref) -> ClientExamples:
    """Return all examples of the artifact ``ref``, on the device of ``resources``."""
    data = stored_data(resources.store.get(*ref).tensors()).to(resources.device)
    return data.select(torch.arange(len(data.labels)), torch.float32)


def stored_model(resources: Resources, network: Network, weights: Ref) -> nn.Module:
    """Return the model of ``network`` with the weights of the artifact ``weights``, on the device of ``resources``."""
    with torch.device(resources.device):
        model = build_network(network)
    model.load_state_dict(resources.store.get(*weights).tensors())
    return model


def initial_model(resources: Resources, network: Network, start: Ref | None, seed: int) -> nn.Module:
    """Return the model of ``network`` with its initial weights, on the device of ``resources``.

    The initial weights are those of the artifact ``start``. If ``start`` is None, they are random and depend on
    ``seed``, except for the weights of a pretrained encoder.
    """
    torch.manual_seed(seed)
    model = build_network(network)
    if start is not None:
        model.load_state_dict(resources.store.get(*start).tensors())
    elif network.is_pretrained:
        from knot_runner.models.pretrained import load_pretrained  # image models do not need this module

        load_pretrained(model, network.spec, resources.data_root)
    return model.to(resources.device)


def finite_logits(model: nn.Module, examples: ClientExamples, title: str, epoch: int) -> Tensor:
    """Return the logits of ``examples``, shape [N, C], as float32 on the CPU.

    Raises:
        DivergedError: A logit is not finite. The message contains ``title`` and ``epoch``.
    """
    logits = forward_all(model, examples, EVALUATION_BATCH).float().cpu()
    if not torch.isfinite(logits).all():
        raise DivergedError(f"{title}: predictions are not finite in epoch {epoch}")
    return logits


@torch.no_grad()
def valid_score(model: nn.Module, valid: ClientExamples, title: str, epoch: int) -> float:
    """Return the macro-F1 of ``model`` on the validation examples ``valid`` (:func:`metrics.measured_score`).

    Raises:
        DivergedError: A logit is not finite. The message contains ``title`` and ``epoch``.
    """
    logits = finite_logits(model, valid, title, epoch)
    return metrics.measured_score(logits.numpy(), valid.labels.cpu().numpy())


def key_of(request: StageRequest) -> StageKey:
    """Return the pair (subfolder of the store, key) that identifies the result of ``request``."""
    if isinstance(request, Predict):
        return "predictions", request_key(request)
    return request.stage, request_key(request)


def missing_of(requests: Iterable[StageRequest], store: Store) -> dict[StageKey, StageRequest]:
    """Return the ``requests`` that have no result in ``store``, as a dict by key. Their order is preserved."""
    missing: dict[StageKey, StageRequest] = {}
    for request in requests:
        key = key_of(request)
        if key not in missing and store.find(*key) is None:
            missing[key] = request
    return missing


def run_one(request: StageRequest, resources: Resources, watch: ProgressCallback) -> Artifact:
    """Return the stored result of ``request``. If the result is missing, compute and store it first.

    Raises:
        BusyError: Another process or thread is computing the result.
    """
    key = key_of(request)
    name = request_title(request)

    def report(done: int, total: int, text: str) -> None:
        watch(name, done, total, text)

    with resources.store.lock(*key, wait=False):
        stored = resources.store.find(*key)
        if stored is not None:
            return stored
        if isinstance(request, Train):
            tensors, facts = train_network(request, resources, resources.store.folder(*key), report)
        elif isinstance(request, Predict):
            tensors, facts = predict_network(request, resources, report)
        else:
            tensors, facts = request.run(resources, resources.store.folder(*key), report)
        watch(name, 1, 1, "done")
        facts |= {"device": str(resources.device), "torch": torch.__version__, "threads": torch.get_num_threads()}
        return resources.store.put(*key, tensors, {"title": name, "machines": [machine()], **facts})
