"""Tiny runs whose clients have models of their own, and their clients as a run makes them."""

import functools
from types import SimpleNamespace

from knot_runner import compose, make_setup
from knot_runner.pipelines.context import Services
from tests import runs
from tests.tiny import TINY_IMAGES, replaced

PERSONAL = ["method.personalization.lr=0.05", "method.personalization.epochs=4", "method.personalization.checkpoints=2"]
ALPHAS = "method.personalization.alphas=[0,0.5,1]"


def run(out, *overrides):
    """The record of one run: its result, and the arrays of the K x K record."""
    record = runs.run(out, *replaced(TINY_IMAGES, *overrides))
    return record.result, record.tensors("clients")


def setup_of(*overrides):
    """The clients of a run, as it deals them, and its network."""
    (job,) = compose(replaced(TINY_IMAGES, *overrides))
    images = functools.partial(Services().images, job.settings.task, None)
    context = SimpleNamespace(
        settings=job.settings, method=job.method, services=Services(), data_root=None, images=images
    )
    return make_setup(context)
