"""Label points of the tasks and random outputs on them, for tests of the generalisation bound."""

import numpy as np
import torch

from knot_runner.composing.commands import compose_jobs
from knot_runner.transport import support

#: Tasks whose labels have coordinates.
TASKS = ("sa", "erc", "nli")


def points_of(task, kind="semantic"):
    (job,) = compose_jobs([f"task={task}"], None)
    return support(torch.tensor(job.settings.task.labels.coordinates, dtype=torch.float64), kind)


def rows(draws, count, classes, sharpness=0.5):
    made = torch.from_numpy(draws.dirichlet(np.full(classes, sharpness), count))
    return made / made.sum(1, keepdim=True)
