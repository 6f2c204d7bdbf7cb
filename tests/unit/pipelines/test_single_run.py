"""What is said of a finished run as a whole."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from knot_runner.pipelines.run import _one_class
from tests.contents import result_with

RESULT = result_with({"labels": {"names": ["ape", "bee"]}})


@pytest.mark.parametrize(("predicted", "truth", "said"), [
    ({"a": [1, 1], "b": [1]}, {"a": [0, 1], "b": [1]}, ["warning: every test example is predicted to be of class bee"]),
    ({"a": [1, 1], "b": [0]}, {"a": [0, 1], "b": [1]}, []), ({"a": [1, 1]}, {"a": [0, 0]}, []),
    ({"a": [1, 1], "before/a": [0, 1]}, {"a": [0, 1], "before/a": [0, 1]},
     ["warning: every test example is predicted to be of class bee"]),
])  # fmt: skip
def test_run_that_predicts_one_class_is_noted(predicted, truth, said, tmp_path):
    path = tmp_path / "predictions.safetensors"
    assert _one_class(path, RESULT) == []  # some runs predict nothing
    arrays = {f"{name}.probabilities": torch.eye(2)[numbers] for name, numbers in predicted.items()}
    save_file(arrays | {f"{name}.labels": torch.tensor(numbers) for name, numbers in truth.items()}, path)
    assert _one_class(path, RESULT) == said and _one_class(path, replace(RESULT, status="diverged")) == []
