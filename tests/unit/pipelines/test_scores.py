"""What a round is measured by: the two weightings of clients, the temperature of the loss, what participants say."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from knot_runner import METHODS, Objective
from knot_runner.pipelines import scores
from knot_runner.pipelines.run import _only_class


def test_over_clients_weights_by_images_and_equally():
    """90 of 100 images right at one client, 1 of 10 at another; the third has no test images."""
    found = scores.over_clients([0.9, None, 0.1], [100, 0, 10])
    assert found == {"weighted": pytest.approx(91 / 110), "unweighted": pytest.approx(0.5)}


@pytest.mark.parametrize(("control", "heat"), [(False, 0.05), (True, 1.0)])
def test_evaluation_temperature_is_that_of_training(control, heat):
    method = SimpleNamespace(lr_control=control, temperature=0.05, schedule=None)
    assert scores.evaluation_temperature(method, 3) == heat


def test_local_facts_of_participants():
    trained = [
        SimpleNamespace(client=4, before=5, after=8, loss=1.0, steps=3),
        SimpleNamespace(client=2, before=0, after=0, loss=2.0, steps=4),
    ]
    requests = [
        SimpleNamespace(client=4, test_rows=range(10), objective=Objective(settings={"temperature": 1.0})),
        SimpleNamespace(client=2, test_rows=[], objective=Objective(settings={"temperature": 0.5})),
    ]
    assert scores.local_facts(requests, trained) == {
        "participants": [4, 2], "before": [0.5, None], "after": [0.8, None], "train_loss": 1.5,
        "train_temperature": 0.75, "steps": 7,
    }  # fmt: skip


def test_one_model_excludes_local_statistics_and_ditto():
    of = {key: SimpleNamespace(batchnorm=key, patterns=("*",)) for key in ("averaged", "frozen", "local")}
    assert scores.one_model(METHODS["fedavg"], of["averaged"]) and scores.one_model(METHODS["fedavg"], of["frozen"])
    assert not scores.one_model(METHODS["fedavg"], of["local"])
    assert not scores.one_model(METHODS["fedavg"], SimpleNamespace(batchnorm="averaged", patterns=("!head",)))
    assert not scores.one_model(METHODS["ditto"], of["averaged"])


@pytest.mark.parametrize(("predicted", "truth", "only"), [
    ({"a": [1, 1], "b": [1]}, {"a": [0, 1], "b": [1]}, "bee"), ({"a": [1, 1], "b": [0]}, {"a": [0, 1], "b": [1]}, None),
    ({"a": [1, 1]}, {"a": [0, 0]}, None),
    ({"a": [1, 1], "before/a": [0, 1]}, {"a": [0, 1], "before/a": [0, 1]}, "bee"),
])  # fmt: skip
def test_only_class_that_a_run_predicts(predicted, truth, only, tmp_path):
    path = tmp_path / "predictions.safetensors"
    arrays = {f"{name}.probabilities": torch.eye(2)[numbers] for name, numbers in predicted.items()}
    save_file(arrays | {f"{name}.labels": torch.tensor(numbers) for name, numbers in truth.items()}, path)
    assert _only_class(path, ["ape", "bee"]) == only
