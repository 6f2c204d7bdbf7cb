"""The smallest real run: generated text, a narrow model, one epoch per stage. Seconds on one core."""

TINY = [
    "task.limit=60", "model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600",
    "training.local.epochs=1", "training.pretrain.epochs=1", "training.distil.epochs=2", "training.distil.batch=16",
    "method.bias.texts=20", "method.bias.tokens=20", "hardware.workers=1",
]  # fmt: skip
