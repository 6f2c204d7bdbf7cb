"""Whole runs of FedDF: the transfer set, records and engines."""

import pytest
import torch

from knot_runner import compose
from knot_runner.cli.main import main
from knot_runner.testing import check_engines_agree
from tests.feddf_runs import TINY_FEDDF, run, setup_of
from tests.tiny import FEDDF_SINKHORN_E, TINY_IMAGES, TINY_TEXTS, replaced

# ----------------------------------------------------------------------------------------------------- the examples


def test_feddf_transfer_images_are_held_out_unlabeled(tmp_path):
    words = replaced(TINY_IMAGES, *FEDDF_SINKHORN_E, "method.server_distillation.bias.images=30")
    made = setup_of(tmp_path, words)
    server = made.federation.server
    transfer, random = server.transfer, server.random
    clients = torch.cat(made.federation.rows("train"))
    everything = torch.cat([clients, transfer, random])
    assert everything.sort().values.tolist() == list(range(330)) and len(transfer) == 60
    assert set(made.data.labels[transfer].tolist()) == {-1} == set(made.data.labels[random].tolist())
    truth = torch.from_numpy(made.task.train.labels)
    assert torch.equal(made.data.labels[clients], truth[clients])
    assert torch.equal(made.data.pixels[:300], torch.from_numpy(made.task.train.pixels))
    shares = torch.bincount(truth[transfer], minlength=10) / torch.bincount(truth, minlength=10)
    assert (shares - 0.2).abs().max() < 0.03  # stratified
    assert made.federation.server.test.tolist() == list(range(len(made.test.labels))) and made.held_out == 60
    again, other = setup_of(tmp_path, words), setup_of(tmp_path, [*words, "seed=1"])
    assert torch.equal(again.federation.server.transfer, transfer)
    assert torch.equal(again.data.pixels, made.data.pixels)
    assert not torch.equal(other.federation.server.transfer, transfer)
    assert not torch.equal(other.data.pixels[300:], made.data.pixels[300:])
    assert any("60 of 300 training examples are assigned to no client and used" in note for note in made.notes)


def test_feddf_uses_tree_solver_for_tree_geometry():
    """The Newton solver suits few classes: with 62 classes, a round would take minutes."""
    words = ["task=femnist", *FEDDF_SINKHORN_E]
    newton = ["method.server_distillation.loss.solver=newton"]
    for more, solver in (([], "tree"), (["task.geometry=superclasses"], "tree"), (newton, "newton")):
        (job,) = compose([*words, *more])
        assert job.method.server_distillation.loss.solver == solver


def test_partition_transfer_gives_fedavg_same_clients_as_feddf(tmp_path):
    feddf, fedavg = (
        setup_of(tmp_path, [*TINY_IMAGES, f"method={name}", "partition.transfer=0.3"]) for name in ("feddf", "fedavg")
    )
    assert [a.tolist() for a in feddf.federation.rows("train")] == [b.tolist() for b in fedavg.federation.rows("train")]
    assert fedavg.federation.server is None and fedavg.held_out == feddf.held_out == 90
    plain = setup_of(tmp_path, TINY_IMAGES)
    assert sum(map(len, plain.federation.rows("train"))) == 300 and plain.held_out == 0


def test_feddf_distills_texts_on_task_transfer_set(tmp_path):
    small = [*FEDDF_SINKHORN_E, "method.server_distillation.bias.texts=7", "method.server_distillation.bias.tokens=9"]
    made = setup_of(tmp_path, [*TINY_TEXTS, *small])
    federation, texts = made.federation, made.data.texts
    (own,) = (data for data in made.task.whole.datasets.values() if data.role == "transfer")
    count = len(made.task.train)
    assert sum(map(len, made.federation.rows("train"))) == count and made.held_out == 0
    assert federation.server.transfer.tolist() == list(range(count, count + len(own.splits["train"])))
    assert federation.server.random.tolist() == list(range(len(texts) - 7, len(texts)))
    assert set(made.data.labels[count:].tolist()) == {-1} and -1 not in made.data.labels[:count]
    alone = setup_of(tmp_path, [*TINY_TEXTS, "method=fedavg"]).data.texts
    batch, before = texts.batch(torch.arange(count)), alone.batch(torch.arange(count))
    assert all(torch.equal(batch[name], before[name]) for name in batch)
    assert int(texts.lengths[federation.server.random].min()) > 2 and len(texts.ids) == int(texts.offsets[-1])


# ------------------------------------------------------------------------------------------------------- whole runs


def test_feddf_records_what_distillation_gains(tmp_path, capsys):
    result, rows, _ = run(tmp_path, *TINY_FEDDF)
    assert "distilled in 3 rounds: average change of accuracy " in capsys.readouterr().out
    assert all(row["distill_after"] == pytest.approx(row["accuracy"]) for row in rows)
    gains = [row["distill_after"] - row["distill_before"] for row in rows]
    assert result["distilled"] == {
        "rounds": 3, "loss": rows[-1]["distill_loss"], "before": rows[-1]["distill_before"],
        "after": rows[-1]["distill_after"], "gain": pytest.approx(sum(gains) / 3),
    }  # fmt: skip
    assert result["datasets"]["train"] == 240


def test_engines_agree_on_feddf_schedule_and_validation(tmp_path):
    small = ["schedule=cosine", "valid=0.3", "check=2", "patience=4", "optimizer=sgd", "lr=12.0", "epochs=9"]
    own = [f"method.server_distillation.{word}" for word in (*small, "batch_size=16")]
    check_engines_agree(["method=feddf", "training.rounds=2", *own], tmp_path)


def test_feddf_divergence_names_the_server(tmp_path, capsys):
    steep = [f"method.server_distillation.{word}" for word in ("optimizer=sgd", "lr=1e30")]
    assert main([*TINY_FEDDF, *steep, f"paths.output_dir={tmp_path}"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "diverged in round 1 at the server: its loss or weights are not finite. First try a smaller method." in said
