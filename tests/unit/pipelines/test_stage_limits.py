"""Limits of a stage: what they leave of the examples, and the names of runs without them."""

import numpy as np

from knot_runner.composing.commands import compose_jobs
from knot_runner.data.tasks import Dataset, Examples
from knot_runner.pipelines.federations.parties import used_examples


def test_smaller_limits_are_parts_of_larger_ones():
    (job,) = compose_jobs(["training.distil.limit=20"], None)
    (larger,) = compose_jobs(["training.distil.limit=30"], None)
    (other,) = compose_jobs(["training.distil.limit=20", "seed=1"], None)
    whole = Examples([str(i) for i in range(50)], None, np.arange(50))
    data = Dataset("pool", "transfer", {"train": whole, "valid": whole})
    few, more, others = (used_examples(data, "train", one.settings).labels for one in (job, larger, other))
    assert len(few) == 20 and set(few) < set(more) and len(more) == 30 and (np.diff(few) > 0).all()
    assert set(others) != set(few)
    assert used_examples(data, "valid", job.settings) is whole
    assert used_examples(Dataset("a", "local", {"train": whole}), "train", job.settings) is whole
