"""Kinds of personalization that combine clients' models: records and the figure."""

import csv
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.config.strict import content_of
from knot_runner.data.images.held_out import unseen_clients
from knot_runner.methods.personalization import finetune
from knot_runner.methods.personalization.contract import PersonalFederation
from knot_runner.papers.soup import landscape
from knot_runner.papers.soup.landscape import Plane, barrier
from knot_runner.papers.soup.settings import LandscapeSettings
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.run_folders import Job
from tests.changed_settings import built
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES, replaced
from tests.unit.methods.federated.worlds import make_world, settings, with_rows

#: The key of a kind of personalized models.
KIND = "+base/personalization@method.personalization"
COSSIM = replaced(TINY_IMAGES, f"{KIND}=cossim", "method.personalization.rounds=2", "method.personalization.lr=0.05")
SMALL = [*TINY_IMAGES, f"{KIND}=transfer_matrix", "method.personalization.epochs=1", "method.personalization.steps=4",
         "method.personalization.checkpoints=2", "method.personalization.lr=0.1"]  # fmt: skip
#: Eight clients of real digits, half of them with reversed labels.
CONFLICT = [word for word in TINY_IMAGES if not word.startswith(("partition.", "task.max_examples", "training."))]
CONFLICT += ["partition=iid", "partition.num_clients=8", "partition.alter=conflict", "training.rounds=8",
             "training.clients_per_round=8", "training.local_epochs=2", "training.lr=0.1", "training.evaluate_every=8",
             f"{KIND}=transfer_matrix", "method.personalization.lr=0.1", "method.personalization.epochs=5",
             "method.personalization.start=zero", "method.personalization.steps=20"]  # fmt: skip


def run(out, *overrides):
    """(folder, result) of a run."""
    found = kr.run([*overrides, f"paths.output_dir={out}"])
    return found.folder, content_of(found.result)


@pytest.fixture(scope="module")
def conflict(tmp_path_factory):
    out = tmp_path_factory.mktemp("conflict")
    return out, *run(out, *CONFLICT)


def test_cossim_records_its_aggregation_and_chosen_point(tmp_path):
    folder, result = run(tmp_path, *COSSIM, "partition.unseen=0.3")
    facts, record = result["personalization"], load_file(folder / "clients.safetensors")
    assert [point["phase"] for point in facts["points"]] == ["trained", "combined", "trained", "combined", "trained"]
    matrix = record["aggregation"]
    assert matrix.shape == (6, 6) and np.allclose(matrix.sum(1), 1)
    assert facts["similarity"]["kept"] == pytest.approx((matrix > 0).sum() / 6)
    assert facts["similarity"]["leaves"] == ["model", "label histogram"]
    correct, examples = record["correct"], record["examples"]
    assert (correct <= examples).all() and correct.shape == (5, 6, 6)
    unseen = unseen_clients(6, 0.3, 0)
    seen = [client for client in range(6) if client not in unseen]
    own = np.mean([correct[1, k, k] / examples[k, k] for k in seen])
    assert facts["points"][1]["id_accuracy"] == pytest.approx(own)
    best = np.argmax([point["valid_accuracy"] for point in facts["points"]])
    assert facts["chosen"] == best
    assert any("sends its label histogram" in note for note in result["notes"])


def test_unnormalized_aggregation_is_recorded_as_diverged(tmp_path, capsys):
    spec = ["method.personalization.form=unnormalized", "method.personalization.rounds=30", "training.rounds=1"]
    assert main([*replaced(COSSIM, *spec), f"paths.output_dir={tmp_path}"]) == 1
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "diverged" and set(result["diverged"]) == {"step", "client"}
    assert "the predictions of its model are not finite" in result["notes"][-1]
    assert "Traceback" not in capsys.readouterr().err


def test_clusters_are_combined_across(tmp_path):
    """Models of the last round are the clusters', and all clients are combined."""
    pairs = ["partition=pairs", "partition.num_clients=4", "partition.groups=[[0,1],[2,3]]"]
    one = ["method=clustered_fedavg", "method.clustering.graph=none"]
    small = [word for word in replaced(TINY_IMAGES, "training.rounds=1") if not word.startswith("partition.")]
    spec = "{kind: cossim, rounds: 1, lr: 0.05, cutoff: 0.5}"
    folder, result = run(tmp_path / "one", *small, *pairs, *one, f"method.personalization={spec}")
    record = load_file(folder / "clients.safetensors")
    assert ((record["aggregation"] > 0).sum(1) == 2).all()  # those of its own pair of classes
    groups = json.loads((folder / "partition.json").read_text())["groups"]
    same = np.equal.outer(groups, groups)
    assert ((record["aggregation"] > 0) == same).all() and result["personalization"]["similarity"]["least"] == 0
    two = ["method=clustered_fedavg", "method.clustering.clusters=2", "method.clustering.otdd.samples=20"]
    spec = "{kind: transfer_matrix, epochs: 1, steps: 2, checkpoints: 1, lr: 0.05}"
    folder, result = run(tmp_path / "two", *small, *pairs, *two, f"method.personalization={spec}")
    facts = result["personalization"]
    assert facts["points"][0]["id_accuracy"] == facts["points"][1]["id_accuracy"]  # lambda = I, from two starts
    assert load_file(folder / "clients.safetensors")["lambda"].shape == (4, 4)


def test_lambda_finds_the_clients_with_reversed_labels(conflict, capsys):
    _, folder, result = conflict
    facts, record = result["personalization"], load_file(folder / "clients.safetensors")
    transfer, off = facts["transfer"], ~np.eye(8, dtype=bool)
    groups = record["groups"]
    assert groups.sum() == 4 and json.loads((folder / "partition.json").read_text())["groups"] == groups.tolist()
    same = np.equal.outer(groups, groups)[off]
    assert transfer["auc"] == pytest.approx(roc_auc_score(same, record["lambda"][off])) and transfer["auc"] >= 0.95
    assert transfer["within"] > 0.1 > 0.05 > transfer["across"]
    start, trained, last = facts["start"], facts["points"][0], facts["points"][-1]
    assert last["id_accuracy"] > max(start["id_accuracy"], trained["id_accuracy"]) + 0.05
    assert facts["points"][1]["id_accuracy"] == start["id_accuracy"] and facts["chosen"] == len(facts["points"]) - 1
    assert result["metrics"]["id_accuracy"]["ALL"] == last["id_accuracy"]
    assert transfer["leaves"] == ["model", "gradients on held-out examples"]
    assert "partition.alter: 4 of 8 clients have reversed labels" in result["notes"]


def test_transfer_matrix_figure_shows_the_recorded_lambda(conflict, tmp_path, capsys):
    out, folder, result = conflict
    job = Job(folder.name, folder, "femnist", "fedavg", 0)
    matrix = load_file(folder / "clients.safetensors")["lambda"]
    lines = FIGURES["transfer_matrix"]([job], tmp_path / "lambda.png")
    facts = result["personalization"]["transfer"]
    assert (
        f"within groups {facts['within']:.3f}, across groups {facts['across']:.3f}, AUC {facts['auc']:.3f}" in lines[0]
    )
    rows = list(csv.DictReader((tmp_path / "lambda.csv").open()))
    assert len(rows) == 64 and float(rows[9]["lambda"]) == pytest.approx(matrix[1, 1], rel=1e-6)
    assert (rows[10]["client"], rows[10]["update of"]) == ("1", "2")
    assert float(rows[10]["lambda"]) == pytest.approx(matrix[1, 2], rel=1e-6) != pytest.approx(matrix[2, 1], rel=1e-6)
    assert (tmp_path / "lambda.png").stat().st_size > 10_000
    (folder / "clients.safetensors").rename(tmp_path / "kept")
    with refuses():
        FIGURES["transfer_matrix"]([job], tmp_path / "none.png")
    (tmp_path / "kept").rename(folder / "clients.safetensors")


FEW = ["partition.num_clients=6", "training.clients_per_round=3", "model.hidden=[16]", "training.rounds=2",
       "hardware.num_workers=1"]  # fmt: skip


def test_landscapes_of_two_clients_and_their_figure(tmp_path, capsys):
    small = [
        f"method.personalization.{word}" for word in ("lr=0.05", "epochs=4", "checkpoints=2", "between=[1,1]", "grid=3")
    ]
    overrides = ["experiment=soup/landscape", "task.source=embedded", "seed=0", "task.max_examples=300"]
    overrides += ["task.shape=[1,8,8]", *FEW, *small]
    overrides.append(f"paths.output_dir={tmp_path}")
    (job,) = kr.compose(overrides)
    folder = kr.run(job).folder
    assert main(["plot", "soup/landscape", *overrides[1:]]) == 0
    facts = json.loads((folder / "result.json").read_text())["personalization"]
    record = load_file(folder / "clients.safetensors")
    for one in facts["landscape"]:
        client = one["client"]
        assert record[f"landscape/{client}/loss"].shape == (3, 3, 2)
        own = record["loss"][:, client, client] / record["examples"][client, client]
        path = record[f"landscape/{client}/path_loss"]
        assert path[:, 0].tolist() == pytest.approx(own.tolist(), abs=1e-9)  # at every save, as the record has it
        assert record[f"landscape/{client}/segment"][[0, -1], 0].tolist() == pytest.approx(
            own[[0, -1]].tolist(), abs=1e-6
        )
    assert (tmp_path / "figures" / "soup/landscape.png").exists()
    assert "above the line between the ends by at most" in capsys.readouterr().out


def test_soup_preset_shows_trade_off_table_and_figure(tmp_path, capsys):
    overrides = ["experiment=soup/femnist", "task.source=embedded", "seed=0,1", "task.max_examples=300"]
    overrides += ["task.shape=[1,8,8]", *FEW]
    overrides += ["arm=finetune,soup", "method.personalization.epochs=1", "method.personalization.checkpoints=1"]
    overrides.append(f"paths.output_dir={tmp_path}")
    for job in kr.compose(overrides):
        kr.run(job)
    assert main(["table", "soup/femnist", *overrides[1:]]) == 0
    shown = capsys.readouterr().out
    assert "ID at OOD -1" in shown and "what the curve of (OOD, ID) dominates" in " ".join(shown.split())
    assert main(["plot", "soup/femnist", *overrides[1:]]) == 0
    shown = capsys.readouterr().out
    assert "soup: ends at ID" in shown and (tmp_path / "figures" / "soup/femnist.png").exists()
    rows = (tmp_path / "figures" / "soup/femnist.csv").read_text().splitlines()
    assert rows[0] == "method,seed,step,alpha,ood_accuracy,id_accuracy" and len(rows) == 1 + 2 * (2 + 11)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/soup/*/result.json")]
    area = sum(result["personalization"]["area"] for result in results) / 2
    (table,) = (tmp_path / "tables").glob("soup/femnist.csv")
    assert f"{area:.4f}"[1:] in table.read_text()


def test_plane_runs_through_three_models():
    plane = Plane.of(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 1.0]), torch.tensor([2.0, 4.0, 1.0]))
    assert plane.first.tolist() == [2, 0, 0] and plane.second.tolist() == [0, 2, 0]
    assert plane.coordinates(torch.tensor([2.0, 4.0, 1.0])) == pytest.approx((0.5, 1.5, 0.0))
    assert plane.coordinates(torch.tensor([1.0, 1.0, 2.0])) == pytest.approx((0.0, 0.0, 0.5))
    assert plane.at(0.5, -1.0, torch.float64).tolist() == [2, -1, 1]


def test_plane_of_collinear_models_lacks_second_direction():
    plane = Plane.of(torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([0.25, 0.25]))
    assert plane.second.norm() < 1e-12
    assert plane.coordinates(torch.tensor([0.5, 0.5])) == pytest.approx((0.5, 0.0, 0.0))


def test_barriers_by_hand():
    assert barrier(torch.tensor([2.0, 2.5, 1.0])) == pytest.approx(1.0)
    assert barrier(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(-0.5)
    assert barrier(torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)) == pytest.approx(0.0)


def test_landscape_finish_matches_losses_of_plane_models(monkeypatch):
    monkeypatch.setattr(landscape, "drawn", lambda *_: [3, 1])
    world = make_world([5])
    begun = world.federation
    federation = PersonalFederation.after(begun, settings(), begun.start_of)
    plane = {"kind": "landscape", "between": [2, 1], "grid": 5, "margin": 0.0}
    config = built(LandscapeSettings, "base/personalization/finetune.yaml", lr=0.3, epochs=4, checkpoints=4, **plane)
    asked = []

    def losses(client, models):
        asked.append(client)
        return torch.stack([
            torch.stack([_loss(world, model.weights, rows) for rows in federation.rows("test")]) for model in models
        ])  # fmt: skip

    state, round = finetune.init(config, federation), 0
    while requests := landscape.plan(config, state, federation, round):
        state, _ = landscape.fold(config, state, federation, round, requests, world.engine.train(requests))
        round += 1
    assert round == landscape.landscape_rounds(config, federation) == 8
    arrays, facts = landscape.finish(config, federation, state, losses)
    assert [one["client"] for one in facts["landscape"]] == [3, 1] and set(asked) == {1, 3}
    assert facts["barrier"] == max(one["barrier"] for one in facts["landscape"])
    for client, between in ((3, 2), (1, 1)):
        own = {
            name: arrays[f"landscape/{client}/{name}"] for name in ("x", "y", "loss", "path", "path_loss", "segment")
        }
        path = [federation.model.weights, *(state[f"path/{client}/{step}"] for step in range(1, 5))]
        plane = Plane.of(path[0], path[-1], path[between])
        assert own["path"][:, 2][[0, between, 4]].abs().max() < 1e-12 and own["path"][0].abs().max() == 0
        for step, theta in enumerate(path):
            each = [float(_loss(world, theta, federation.clients[other].test)) for other in range(5)]
            others = sum(each[:client] + each[client + 1 :]) / 4
            assert own["path_loss"][step].tolist() == pytest.approx([each[client], others], abs=1e-12)
        for step in (0, between, 4):  # where the plane has these three, it has their losses
            theta = plane.at(*own["path"][step, :2].tolist(), torch.float64)
            assert float(_loss(world, theta, federation.clients[client].test)) == pytest.approx(
                float(own["path_loss"][step, 0]), abs=1e-6
            )
        ends = own["path_loss"][[0, -1]]
        torch.testing.assert_close(own["segment"][[0, -1]], ends, rtol=0, atol=1e-9)
        for i, j in ((0, 0), (2, 3), (4, 1)):
            theta = plane.at(float(own["x"][j]), float(own["y"][i]), torch.float64)
            assert float(own["loss"][i, j, 0]) == pytest.approx(
                float(_loss(world, theta, federation.clients[client].test))
            )


def test_landscape_drawn_picks_clients_with_largest_gains():
    world = make_world([])
    begun = world.federation
    valid = [torch.arange(4), torch.arange(8), torch.arange(2), torch.arange(5), torch.arange(4)]
    federation = PersonalFederation.after(with_rows(begun, valid=valid), settings(), begun.start_of)
    state = {"record/valid": torch.tensor([[1, 1, 0, 0, 1], [9, 9, 9, 9, 9], [2, 5, 1, 1, 3]])}
    assert landscape.drawn(federation, state) == [1, 2]  # gains .25, .5, .5, .2, .5: of equal ones the first two


def _loss(world, weights, rows):
    """Mean cross-entropy of an MLP of one hidden layer, by hand."""
    fields = world.federation.layout.parameters
    w = {field.name: weights[field.start : field.stop].view(field.shape).double() for field in fields}
    first, second = sorted({name.rsplit(".", 1)[0] for name in w}, key=lambda name: name == "head")
    x = world.engine.test.pixels[rows].flatten(1).double()
    hidden = torch.relu(x @ w[f"{first}.weight"].T + w[f"{first}.bias"])
    return F.cross_entropy(hidden @ w[f"{second}.weight"].T + w[f"{second}.bias"], world.engine.test.labels[rows])
