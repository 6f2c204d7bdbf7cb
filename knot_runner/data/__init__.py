"""Data sets of texts and images: their readers, generated stand-ins, splits and partitions over clients."""

from knot_runner.data.load import load_task
from knot_runner.data.tasks import TEXT_SPLITS, UNLABELLED, Dataset, Examples, TextTask

__all__ = ["TEXT_SPLITS", "UNLABELLED", "Dataset", "Examples", "TextTask", "load_task"]
