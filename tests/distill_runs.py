"""Tiny runs for tests of distillation by loss terms."""

from pathlib import Path

from knot_runner import compose
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.parties.setup import make_federation, read_parties
from tests.tiny import TINY, TINY_TAUGHT, replaced

#: Real digits in color; a teacher and a student of two convolutions.
TINY_DISTILL = [
    "task=cifar10", "task.max_examples=120", "task.shape=[3,8,8]", "model=cnn_8",
    "model.convs=[{channels: 4, kernel: 3, padding: 1}, {channels: 6, kernel: 3, padding: 1}]",
    "training.local.epochs=2", "training.local.lr=0.01", "training.local.batch_size=32", "training.local.select=best",
    "training.distill.epochs=2", "training.distill.lr=0.01", "training.distill.batch_size=32",
    "training.distill.select=best", "hardware.num_workers=1",
]  # fmt: skip
#: A student of digits that first follows a hint.
TWO_STAGE = replaced(TINY_TAUGHT, "+method.schedule.phases=[{epochs: 3, terms: {hint: {weight: 1.0}}}]")
#: Generated reviews, a narrow teacher.
SMALL_TEXTS = [
    *(word for word in replaced(TINY, "task=sa") if not word.startswith(("method.bias", "training.pretrain"))),
    "method.teachers=[{kind: bert, name: narrow, head: plain, weights: scratch, vocab: train, vocab_size: 600, "
    "hub_id: '', revision: main, hidden: 8, layers: 2, heads: 2, intermediate: 16, dropout: 0.1}]",
]  # fmt: skip


def distill_job(out: Path, *overrides: str):
    """Compose the tiny run with ``overrides``."""
    (job,) = compose([*replaced(TINY_DISTILL, *overrides), f"paths.output_dir={out}"])
    return job


def distill_federation(out: Path, *overrides: str):
    """Return the job, its store with the examples, and the federation; nothing is trained."""
    job = distill_job(out, *overrides)
    context = RunContext(job.settings, job.method, job.folder, "", job.run_id, lambda *_: None, lambda _: None)
    return job, context.store, make_federation(context, read_parties(context))
