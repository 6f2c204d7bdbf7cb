"""A small run of distances between clients, and its result."""

from pathlib import Path
from typing import Any

from tests.contents import read_content

#: Twelve clients of about 25 digits, five planted groups.
CLIENTS = [
    "task=mnist", "task.shape=[1,8,8]", "task.max_examples=300", "partition=pairs", "partition.num_clients=12",
    "method=dataset_distance", "method.otdd.fedwad.support=5", "method.otdd.fedwad.iterations=3",
    "hardware.num_workers=1",
]  # fmt: skip


def result_of(out: Path) -> dict[str, Any]:
    (path,) = out.glob("*/*/*/result.json")
    return read_content(path.parent)
