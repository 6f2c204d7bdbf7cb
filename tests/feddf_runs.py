"""Settings and runs for tests of server distillation."""

from pathlib import Path

import numpy as np
import torch

from knot_runner import compose, make_setup
from knot_runner.config.settings.methods.knot import BiasSettings, EntropySettings
from knot_runner.config.settings.methods.server_distillation import ServerDistillation
from knot_runner.pipelines.context import RunContext
from tests.changed_settings import terms_of
from tests.runs import command
from tests.tiny import FEDDF_SINKHORN_E, TINY_IMAGES, replaced

ENTROPY = EntropySettings("entropy", "kl")
POINTS = [[0.0], [1.0], [3.0]]
TRANSFER, RANDOM = torch.arange(30, 62), torch.arange(5, 25)
TINY_FEDDF = replaced(
    TINY_IMAGES, *FEDDF_SINKHORN_E, "training.lr=0.1", "method.server_distillation.bias.images=30",
    "method.server_distillation.batch_size=16", "method.server_distillation.lr=0.01",
    "method.server_distillation.loss.solver=newton", "method.server_distillation.loss.epsilon=0.5",
    "task.geometry=onehot",
)  # fmt: skip


def run(out: Path, *words: str):
    """(result, rows, weights) of one run by the command line, without times."""
    record = command(out, *words)
    return record.result, record.rows, record.tensors()


def setup_of(tmp_path, words):
    (job,) = compose([*words, f"paths.output_dir={tmp_path}"])
    context = RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, lambda _: None)
    return make_setup(context)


def distill(**changes) -> ServerDistillation:
    """The server's settings with ``changes``."""
    plain = {"loss": ENTROPY, "weighting": "A", "ensemble": "each", "normalize": False, "student_temperature": 1.0,
             "teacher_temperature": 1.0, "epochs": 2, "steps": None, "batch_size": 5, "lr": 0.05, "optimizer": "adamw",
             "momentum": 0.0, "weight_decay": 0.0, "after": 0, "every": 1,
             "bias": BiasSettings(20, 20, 2000, "uniform"), "schedule": "constant",
             "valid": 0.0, "check": 100, "patience": 1000}  # fmt: skip
    changes["terms"] = terms_of(changes.get("terms", {}))
    return ServerDistillation(**{**plain, **changes})


def close(found, wanted, atol=1e-6):
    """Targets are rounded to float32."""
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=atol)
