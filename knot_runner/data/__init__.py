"""What is learnt: readers of text files and hub data sets, generated text, and the cuts into splits."""

from knot_runner.data.examples import TEXT_SPLITS, UNLABELLED, Dataset, Examples, TextTask
from knot_runner.data.load import load_task

__all__ = ["TEXT_SPLITS", "UNLABELLED", "Dataset", "Examples", "TextTask", "load_task"]
