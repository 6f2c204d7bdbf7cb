"""A check of engines against ``hardware.engine=loop``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.config.settings.networks import MlpSettings, ResnetSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, ClientModel, Inference, LocalTraining, Phase, Recipe
from knot_runner.engine.objectives import LossRows, Objective, ObjectiveInputs, SampleLoss
from knot_runner.models.network import Network

#: Two networks with the same inputs. The second has running statistics, and more weights than a chunk has logits.
_NETWORKS = (Network(MlpSettings("mlp", "mlp", [16, 12], "logits"), (1, 8, 8), 5),
             Network(ResnetSettings("resnet", "resnet", [1], 24, "cifar", "batch", 1), (1, 8, 8), 5))  # fmt: skip
_PLAIN = Recipe(phases=(Phase(1),), batch_size=8, drop_last=False, lr=0.1)
_RECIPES = {"plain SGD": {}, "momentum": {"momentum": 0.9}, "the proximal term": {"proximal": 0.3},
            "weight decay": {"weight_decay": 0.1, "decay_biases": False}, "several epochs": {"phases": (Phase(3),)},
            "control variates": {}, "AdamW": {"optimizer": "adamw", "lr": 0.01},
            "an objective of features": {}}  # fmt: skip
#: Compared attributes of a trained client.
_PARTS = ("client", "steps", "before", "after", "finite", "loss", "weights", "buffers")


def check_engine(name: str, workers: Sequence[int] = (1, 2), within: float = 1e-9) -> None:
    """Check that ``hardware.engine=name`` trains clients, and infers, as ``hardware.engine=loop`` does.

    The check runs on the CPU in float64. Clients train two networks (an MLP, and a residual network with BatchNorm) on
    17, 16, 5 and 1 examples in batches of 8. The check compares weights [P], buffers [Q], mean loss, steps and correct
    test predictions. It covers plain SGD, momentum, weight decay, the proximal term, several epochs, control variates,
    AdamW, and an objective that reads features. It also compares logits and features of test and training examples, of
    no examples, and of more than one chunk. Results must be bitwise equal for any order of requests and any
    ``hardware.num_workers``. An empty list must give an empty list, and requests must not be changed.

    Args:
        name: An entry of the table ``ENGINES``, or a folder of ``knot_runner/engines``.
        workers: The values of ``hardware.num_workers`` that are tried.
        within: The largest allowed difference from the loop, relative to the largest value of a vector.

    Raises:
        AssertionError: A result differs. The message describes the first difference.
    """
    cohort, questions = _cohort(), _questions()
    models = [*(request.start for request in cohort.values()), *(request.model for request in questions.values())]
    before = torch.cat([model.weights for model in models])
    first = _answers(name, workers[0], cohort, questions)
    assert torch.equal(torch.cat([model.weights for model in models]), before), f"engine={name} changes its requests"
    _compare(first, _answers("loop", 1, cohort, questions), within, f"engine={name} and loop")
    turned = _answers(name, workers[0], dict(reversed(cohort.items())), dict(reversed(questions.items())))
    _compare(turned, first, 0.0, f"engine={name} and the same with requests in reverse")
    for count in workers[1:]:
        other = _answers(name, count, cohort, questions)
        _compare(other, first, 0.0, f"engine={name}, {workers[0]} and {count} workers")


def _answers(
    name: str, workers: int, cohort: dict[str, LocalTraining], questions: dict[str, Inference]
) -> dict[str, Tensor]:
    """Return the engine's results for all requests, each part under its name."""
    hardware = HardwareSettings("cpu", "cpu", 1, workers, engine=name, precision="float64", stack=0)
    with closing(make_engine(hardware, _NETWORKS, _images(80), _images(40))) as engine:
        assert engine.train([]) == engine.logits([]) == [], f"engine={name} returns results that were not requested"
        trained = zip(cohort, engine.train(list(cohort.values())), strict=True)
        answers = {f"{what}: {part}": getattr(result, part) for what, result in trained for part in _PARTS}
        answers |= zip(questions, engine.logits(list(questions.values())), strict=True)
    return {what: torch.as_tensor(value, dtype=torch.float64) for what, value in answers.items()}


def _compare(answers: dict[str, Tensor], expected: dict[str, Tensor], within: float, who: str) -> None:
    for what, right in expected.items():
        atol = within * float(right.abs().max()) if right.numel() else 0.0
        torch.testing.assert_close(answers[what], right, rtol=0, atol=atol, msg=f"{who}: {what}: {{}}".format)


def _images(count: int) -> ImageData:
    draws = torch.Generator().manual_seed(count)
    pixels, labels = torch.randint(256, (count, 1, 8, 8), generator=draws), torch.randint(5, (count,), generator=draws)
    return ImageData(pixels.byte(), labels, torch.tensor([0.5]), torch.tensor([0.3]))


def _cohort() -> dict[str, LocalTraining]:
    draws, cohort = torch.Generator().manual_seed(3), {}
    for client, (what, size, network) in enumerate(itertools.product(_RECIPES, (17, 16, 5, 1), (0, 1))):
        start, recipe = _model(network, client % 3), replace(_PLAIN, **_RECIPES[what])
        rows, tests = torch.randperm(80, generator=draws)[:size], torch.randperm(40, generator=draws)[: client % 20]
        control = torch.randn(len(start.weights), generator=draws).double() / 20 if "control" in what else None
        key = f"{what}, client {client}"
        request = LocalTraining(client, 2, 3, start, rows, tests, recipe, control, network=network)
        if "features" in what:
            objective = Objective(_away_from_last, {"weight": 0.5}, reads_features=True)
            request = replace(request, objective=objective, models={"last": _model(network, 5)})
        cohort[key] = request
    return cohort


def _model(network: int, seed: int) -> ClientModel:
    return ClientModel(*(part.double() for part in flat.initial(_NETWORKS[network], seed)))


def _questions() -> dict[str, Inference]:
    rows = torch.arange(INFERENCE_ROWS + 9) % 40
    outputs: list[tuple[Literal["logits", "features"], bool]] = [
        ("logits", False),
        ("features", False),
        ("features", True),
    ]
    asked = itertools.product((1, 0), (rows, rows[:0], rows[5:8]), ("test", "train"), outputs)
    requests = [Inference(_model(n, 4), at, split, network=n, output=o, many=m) for n, at, split, (o, m) in asked]
    return {f"question {number}: {request.output}": request for number, request in enumerate(requests)}


def _away_from_last(settings: dict[str, float], inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Create the loss: cross-entropy, with features close to the start and far from the last model."""
    rows = {"labels": inputs.labels, **{name: inputs.features(name) for name in ("start", "last")}}

    def loss(logits: Tensor, loss_rows: LossRows, features: Tensor) -> Tensor:
        apart = (features - loss_rows["start"]).square().mean(1) - (features * loss_rows["last"]).mean(1)
        return F.cross_entropy(logits, loss_rows["labels"], reduction="none") + settings["weight"] * apart

    return rows, loss
