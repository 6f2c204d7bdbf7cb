"""Personalized models: shared rounds, soups, held-out examples and unseen clients."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, f1_score

from knot_runner.cli.main import main
from knot_runner.data.images.held_out import hold_out_valid
from knot_runner.pipelines.personalization import personalized
from tests.personal_runs import ALPHAS, PERSONAL, run, setup_of


def test_finetune_and_soup_share_rounds_and_endpoints(tmp_path, caplog):
    caplog.set_level("INFO", "knot_runner")
    tuned, record = run(tmp_path, "method=finetune", *PERSONAL, "training.lr=0.1", "partition.valid=0.2")
    assert "were trained by an earlier run" not in caplog.text
    mixed, soups = run(tmp_path, "method=soup", *PERSONAL, ALPHAS, "training.lr=0.1")
    assert "the rounds were trained by an earlier run and are reused" in caplog.text
    assert mixed["artifact"] == tuned["artifact"]
    for name in ("correct", "loss", "valid"):
        assert torch.equal(soups[name][0], record[name][0]) and torch.equal(soups[name][2], record[name][2])
    assert torch.equal(record["correct"][0], record["start"])  # theta_0
    assert not torch.equal(record["correct"][2], record["start"])
    facts = tuned["personalization"]
    assert [point["epochs"] for point in facts["points"]] == [0, 2, 4] and facts["chosen"] == 2
    assert tuned["metrics"]["id_accuracy"]["ALL"] == facts["points"][2]["id_accuracy"]
    assert facts["points"][0]["id_accuracy"] == facts["start"]["id_accuracy"]
    setup = setup_of("method=finetune", *PERSONAL, "partition.valid=0.2")
    batches = [-(-len(rows) // 8) for rows in setup.federation.rows("train")]
    assert [point["sgd_steps"] for point in facts["points"]] == pytest.approx(
        [epochs * sum(batches) / len(batches) for epochs in (0, 2, 4)]
    )


def test_predictions_are_those_of_the_deployed_models(tmp_path):
    result, record = run(tmp_path, "method=soup", *PERSONAL, ALPHAS, "training.lr=0.1")
    (folder,) = (path.parent for path in tmp_path.glob("*/*/*/result.json"))
    arrays = load_file(folder / "predictions.safetensors")
    predicted, labels = arrays["test.probabilities"].argmax(1), arrays["test.labels"]
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx(accuracy_score(labels, predicted))
    assert result["metrics"]["f1"]["ALL"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    facts = result["personalization"]
    scores = [point["valid_accuracy"] for point in facts["points"]]
    assert facts["chosen"] == int(np.argmax(scores)) and len(set(scores)) > 1
    chosen = record["correct"][facts["chosen"]]
    assert int((predicted == labels).sum()) == int(chosen.diagonal().sum())


def test_training_excludes_held_out_examples_and_unseen_clients():
    plain = setup_of("method=fedavg")
    setup = setup_of("method=fedavg", "partition.valid=0.25", "partition.unseen=0.4")
    federation = setup.federation
    assert len(federation.unseen) == 2 and set(federation.unseen).isdisjoint(federation.numbers)
    assert len(federation) == 4 and all(set(federation.drawn(r)).isdisjoint(federation.unseen) for r in range(20))
    for whole, own in zip(plain.federation.clients, federation.clients, strict=True):
        train, valid = own.train, own.valid
        assert sorted([*train.tolist(), *valid.tolist()]) == whole.train.tolist()
        assert len(valid) == max(round(0.25 * whole.size), 1)
    dealt = [hold_out_valid(plain.partition, 0.25, seed).valid for seed in (0, 0, 1)]
    rows = [[own.tolist() for own in valid] for valid in dealt]
    assert rows[0] == rows[1] != rows[2]


def test_unseen_clients_are_measured_apart(tmp_path):
    result, record = run(tmp_path, "method=fedavg", "evaluate.matrix=end", "partition.unseen=0.4", "training.lr=0.1")
    setup = setup_of("method=fedavg", "partition.unseen=0.4")
    sizes, diagonal = record["examples"].diagonal(), record["correct"].diagonal()
    share = {k: float(diagonal[k]) / int(sizes[k]) for k in range(6) if sizes[k]}
    unseen = [share[k] for k in setup.federation.unseen if k in share]
    assert result["unseen"] == 2 and result["clients"] == 4
    assert result["metrics"]["unseen_accuracy"]["ALL"] == pytest.approx(np.mean(unseen))
    (log,) = tmp_path.glob("*/*/*/rounds.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["unseen_accuracy"] == pytest.approx(np.mean(unseen))
    seen = list(setup.federation.numbers)
    assert result["metrics"]["accuracy"]["ALL"] == pytest.approx(float(diagonal[seen].sum() / sizes[seen].sum()))


def test_soup_recomputes_running_statistics(tmp_path):
    """The mean of two models' running statistics is wrong, so one pass over the training images recomputes it."""
    small = ["task=cifar10", "task.max_examples=60", "task.shape=[3,8,8]", "partition=iid", "partition.num_clients=2"]
    small += ["model=resnet8", "training.rounds=1", "training.clients_per_round=2", "training.local_epochs=1"]
    small += ["training.batch_size=8", "hardware.num_workers=1", "method=soup"]
    small += ["method.personalization.epochs=1", "method.personalization.checkpoints=1"]
    seen, passes = [], []
    estimate = personalized._Work._estimated

    def spied(self, number, models):
        train = self.run.engine.train

        def kept(requests):
            passes.extend(zip(requests, train(requests), strict=True))
            return [found for _, found in passes]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.run.engine, "train", kept)
            after = estimate(self, number, models)
        seen.append((self.points[number].alpha, models, after))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personalized._Work, "_estimated", spied)
        assert main([*small, ALPHAS, f"paths.output_dir={tmp_path}"]) == 0
    ((alpha, models, after),) = seen
    assert alpha == 0.5 and len(passes) == 2
    for request, found in passes:  # the weights stand still, batch after batch
        assert found.steps > 1 and torch.equal(found.weights, request.start.weights)
    for (client, model), (same, other) in zip(models.items(), after.items(), strict=True):
        assert client == same and torch.equal(model.weights, other.weights)
        assert not torch.equal(model.buffers, other.buffers)
