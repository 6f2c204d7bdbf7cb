"""A family of one's own: the accuracy of always saying the most frequent class, which any model should beat."""

from dataclasses import dataclass

import numpy as np

import knot_runner as kr
from knot_runner.pipelines.context import RunInputs
from knot_runner.util.errors import UserError


@dataclass
class MajoritySettings:
    name: str
    algorithm: str


def check(settings):
    if settings.seed != 0:
        raise UserError(f"seed: method={settings.method.name} draws nothing; 0 is right")


def inspect(context):
    task = context.services.images(context.settings.task, context.data_root)
    return RunInputs(task, None, None, task.notes)


def run(context, inputs, record):
    hits = inputs.task.test.labels == np.bincount(inputs.task.train.labels).argmax()
    record.add(metrics={"accuracy": {"ALL": float(hits.mean())}})


def summary(name, result):
    return f"{name}: {result.metrics['accuracy']['ALL']:.3f} of the test images are of the most frequent class"


places = {step: f"{__name__}:{step}" for step in ("run", "inspect", "summary", "check")}
kr.register(kr.Family("majority", {"majority": MajoritySettings}, ("images",), **places, trains=False, preload=()))
