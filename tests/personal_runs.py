"""Tiny runs whose clients have models of their own, and their clients as a run makes them."""

import json
from types import SimpleNamespace

from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.cli.python import compose
from knot_runner.pipelines.clients.setup import make_setup
from knot_runner.pipelines.context import Services
from tests.tiny import TINY_IMAGES, replaced

PERSONAL = ["method.personalisation.lr=0.05", "method.personalisation.epochs=4", "method.personalisation.saves=2"]
ALPHAS = "method.personalisation.alphas=[0,0.5,1]"


def run(out, *overrides):
    """The record of one run: its result, and the arrays of the K x K record."""
    before = set(out.glob("*/*/*/result.json"))
    assert main([*replaced(TINY_IMAGES, *overrides), f"paths.out={out}"]) == 0
    (found,) = set(out.glob("*/*/*/result.json")) - before
    record = found.parent / "clients.safetensors"
    return json.loads(found.read_text()), load_file(record) if record.exists() else {}


def setup_of(*overrides):
    """The clients of a run, as it deals them, and its network."""
    (job,) = compose(replaced(TINY_IMAGES, *overrides))
    context = SimpleNamespace(settings=job.settings, hp=job.method, services=Services(), data_root=None)
    return make_setup(context)
