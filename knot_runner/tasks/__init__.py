"""What is learnt: readers of text files and hub data sets, generated text, and the cuts into splits."""

from knot_runner.tasks.examples import SPLITS, UNLABELLED, Dataset, Examples, Task
from knot_runner.tasks.load import load_task

__all__ = ["SPLITS", "UNLABELLED", "Dataset", "Examples", "Task", "load_task"]
