"""Every engine trains clients of two networks and infers as the loop does, in any order and on any workers."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, Inference
from tests.unit.engine.federated.cases import FAMILIES, MODELS, PLAIN, RECIPES, Case, cohort, images

#: The second has running statistics, and more weights than a chunk has logits.
NETWORKS = (MODELS["mlp"], FAMILIES["wrn_batch"])
CASES = {name: RECIPES[name] for name in ("plain", "momentum", "proximal", "decay_weights", "control")} | {
    "AdamW": Case(replace(PLAIN, optimizer="adamw", lr=0.01))
}
PARTS = ("client", "steps", "before", "after", "finite", "loss", "weights", "buffers")


def requests():
    """Local trainings by name, and questions for logits and features: of no examples, and of more than one chunk."""
    trainings, questions = {}, {}
    for (name, case), number in itertools.product(CASES.items(), (0, 1)):
        for request in cohort(NETWORKS[number], case, shared=False):
            client = len(trainings)
            trainings[f"{name}, client {client}"] = replace(request, client=client, network=number)
    rows, outputs = torch.arange(INFERENCE_ROWS + 9) % 40, (("logits", False), ("features", False), ("features", True))
    parts = itertools.product((1, 0), (rows, rows[:0], rows[5:8]), ("test", "train"), outputs)
    for number, part, split, (output, many) in parts:
        model = trainings[f"plain, client {4 * number}"].start
        question = Inference(model, part, split, network=number, output=output, many=many)
        questions[f"question {len(questions)}: {output}"] = question
    return trainings, questions


def answers(name, workers=1, turned=False):
    """The engine's results by request and part, as tensors. Requests must stay as they are."""
    hardware = HardwareSettings("cpu", "cpu", 1, workers, engine=name, precision="float64", stack=0)
    trainings, questions = (dict(reversed(each.items())) if turned else each for each in requests())
    shape = NETWORKS[0].inputs
    with closing(make_engine(hardware, NETWORKS, images(shape), images(shape, 40, 1))) as engine:
        assert engine.train([]) == engine.logits([]) == []
        trained = zip(trainings, engine.train(list(trainings.values())), strict=True)
        found = {f"{key}: {part}": getattr(result, part) for key, result in trained for part in PARTS}
        found |= zip(questions, engine.logits(list(questions.values())), strict=True)
    for key, fresh in requests()[0].items():
        assert torch.equal(trainings[key].start.weights, fresh.start.weights), key
    return {key: torch.as_tensor(value, dtype=torch.float64) for key, value in found.items()}


loop_answers = cache(partial(answers, "loop"))


@pytest.mark.machine
@pytest.mark.parametrize("name", ["lean", "stacked"])
def test_engine_conforms(name):
    first = answers(name)
    for key, value in loop_answers().items():
        atol = 1e-9 * float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(first[key], value, rtol=0, atol=atol, msg=f"{key}: {{}}".format)
    others = [answers(name, turned=True)]
    if name != "stacked":  # which has no workers
        others.append(answers(name, workers=2))
    for other, key in itertools.product(others, first):
        assert torch.equal(other[key], first[key]), key
