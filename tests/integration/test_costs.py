"""Bytes and FLOPs of rounds and stages equal the values computed by hand from the records of a run."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from knot_runner.cli.main import main
from knot_runner.config.settings.methods.distill import (
    AverageSchedule,
    MutualSchedule,
    OfflineSchedule,
    SnapshotSchedule,
)
from knot_runner.config.settings.networks import MlpSettings
from knot_runner.engine.examples import TextData
from knot_runner.methods.distill.costs import StageCounter, sent_bytes
from knot_runner.methods.distill.students import PickStudent, TrainStudents
from knot_runner.methods.distill.synthesis.requests import MakeImages, ReleaseRecords
from knot_runner.models.network import Network
from knot_runner.models.tokens import Encoded
from knot_runner.pipelines.clients import Setup
from tests.personal_runs import PERSONAL
from tests.runs import command
from tests.tiny import CLUSTERING, TINY_IMAGES, TINY_PARTIES, TINY_TAUGHT, replaced

#: Of the tiny perceptron, 64 pixels, 16 hidden units, 10 classes: weights and biases in 4 bytes each.
BODY, HEAD = 64 * 16 + 16, 16 * 10 + 10
F = 2 * (64 * 16 + 16 * 10)
SUMS = ("bytes_down", "bytes_up", "client_flops", "server_flops")


def test_federated_costs_are_recorded_and_compared(tmp_path, capsys):
    sizes = {"fedavg": BODY + HEAD, "scaffold": 2 * (BODY + HEAD), "fedper": BODY}
    for method, numbers in sizes.items():
        words = replaced(TINY_IMAGES, f"method={method}", "training.target=0.01", "training.momentum=0")
        record = command(tmp_path, *words)
        said = capsys.readouterr().out
        result, rows = record.result, record.rows
        costs, examples = result["costs"], json.loads((record.folder / "partition.json").read_text())["train"]
        for row in rows:
            assert row["bytes_up"] == row["bytes_down"] == 3 * numbers * 4
            assert row["client_flops"] == 3 * F * 2 * sum(sum(examples[client]) for client in row["participants"])
            assert row["server_flops"] == 0
        assert {key: costs[key] for key in SUMS} == {key: sum(row[key] for row in rows) for key in SUMS}
        assert costs["bytes"] == 3 * 2 * 3 * numbers * 4 and costs["bytes_per_round"] == costs["bytes"] / 3
        assert costs["bytes_to_target"] == result["rounds_to_target"] * 2 * 3 * numbers * 4
        assert costs["example_flops"] == F and "example_tokens" not in costs
        assert f"{costs['bytes_up'] / 1e3:.3g} kB up" in said and "at clients" in said and "until the target" in said
    assert main(["compare", f"paths.output_dir={tmp_path}", "--measure=bytes,accuracy", "--sort=bytes"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith(tuple(sizes))]
    assert rows == ["fedper", "fedavg", "scaffold"]


def test_costs_of_centralized_training_count_no_messages(tmp_path):
    words = replaced(TINY_IMAGES, "partition=centralized", "training.rounds=1")
    own = [word for word in words if word.split("=")[0] not in ("partition.embedded_clients", "partition.alpha")]
    record = command(tmp_path, *own)
    (row,) = record.rows
    assert row["bytes_up"] == row["bytes_down"] == 0 and row["client_flops"] == 3 * F * 300
    assert record.result["costs"]["sent"] == "nothing, since all examples are at one client"


def test_clustered_costs_sum_rounds_without_distances(tmp_path):
    small = ["method.clustering.clusters=2", "method.clustering.otdd.fedwad.iterations=2", "training.rounds=2"]
    record = command(tmp_path, *replaced(TINY_IMAGES, "method=scaffold", *CLUSTERING, "training.momentum=0", *small))
    for row in record.rows:
        assert row["bytes_up"] == row["bytes_down"] == len(row["participants"]) * 2 * (BODY + HEAD) * 4 > 0
    costs = record.result["costs"]
    assert costs["bytes"] == sum(row["bytes_up"] + row["bytes_down"] for row in record.rows)
    assert "without the distances between clients" in costs["sent"]


def test_example_tokens_equals_mean_client_text_length():
    offsets = torch.tensor([0, 4, 9, 20, 100])  # the last is nobody's
    texts = TextData(Encoded(torch.zeros(100, dtype=torch.int32), offsets, torch.zeros(4)), torch.zeros(4))
    train = [torch.tensor([0]), torch.tensor([2, 1]), torch.tensor([3])]
    clients = [SimpleNamespace(train=rows) for rows in train]
    federation = SimpleNamespace(clients=clients, numbers=(0, 1))  # the last takes part in no round
    own = Setup(None, None, federation, texts, None)
    assert own.example_tokens == 7  # 20 / 3, rounded up


def test_costs_count_personal_training_without_extra_messages(tmp_path):
    record = command(tmp_path, *replaced(TINY_IMAGES, "method=finetune", *PERSONAL, "training.rounds=1"))
    costs, rows = record.result["costs"], record.rows
    assert costs["personal_flops"] == 3 * F * 300 * 4  # of all clients
    assert costs["client_flops"] == costs["personal_flops"] + rows[0]["client_flops"]
    assert costs["bytes"] == 2 * 3 * (BODY + HEAD) * 4


# --------------------------------------------------------------------------------------------------------------- stages


def test_distillation_costs_count_local_models_and_stages(tmp_path, capsys):
    result = command(tmp_path, *replaced(TINY_PARTIES, "method=entropy_e")).result
    assert "14.5 kB up, 0 B down" in capsys.readouterr().out
    costs, sizes = result["costs"], result["datasets"]
    locals_ = [name for name, own in sizes.items() if own["role"] == "local"]
    (server,) = (name for name, own in sizes.items() if own["role"] == "global")
    (transfer,) = (own for own in sizes.values() if own["role"] == "transfer")
    assert costs["bytes_up"] == costs["bytes"] == len(locals_) * (BODY + HEAD) * 4 and costs["bytes_down"] == 0
    wanted = {f"local {name}": 3 * F * 2 * sizes[name]["train"] for name in locals_}
    assert costs["client_flops"] == sum(wanted.values())
    wanted |= {f"pretrain {server}": 3 * F * 2 * sizes[server]["train"]}
    wanted |= {f"soft_labels {name}": F * (transfer["train"] + transfer["valid"]) for name in (*locals_, server)}
    wanted |= {f"bias {name}": F * 60 for name in (*locals_, server)}
    wanted |= {"distill student": 3 * F * 3 * transfer["train"]}
    assert costs["stages"] == wanted
    assert costs["client_flops"] + costs["server_flops"] == sum(wanted.values())


def test_costs_count_messages_only_with_teacher(tmp_path):
    taught = command(tmp_path, *TINY_TAUGHT).result["costs"]
    alone = command(tmp_path, *replaced(TINY_TAUGHT, "method=dml")).result["costs"]
    teacher = 8 * 9 + 8 + 16 * 8 * 9 + 16 + 32 * 16 * 9 + 32  # three convolutions of 3 x 3 and their biases
    assert taught["bytes_up"] >= 4 * teacher and taught["bytes_up"] % 4 == 0 and taught["server_flops"] > 0
    assert taught["client_flops"] == taught["stages"]["local teacher"] and taught["sent"].startswith("every local")
    assert (alone["bytes"], alone["client_flops"]) == (0, 0) and alone["sent"].startswith("nothing")
    student = taught["stages"]["distill student"] - taught["client_flops"] // 3
    assert alone["stages"]["distill student"] == 2 * student  # two that teach each other, and no teacher's answers


STUDENT = Network(MlpSettings("mlp", "t", [3], "logits"), (1, 2, 2), 5)
TEACHER = Network(MlpSettings("mlp", "t", [7], "logits"), (1, 2, 2), 5)
S, T = 2 * (4 * 3 + 3 * 5), 2 * (4 * 7 + 7 * 5)
STORE = SimpleNamespace(get=lambda stage, key: SimpleNamespace(info={"images": int(key)}))


def students(schedule, teachers: int = 0, **changes) -> TrainStudents:
    settings = SimpleNamespace(epochs=9)
    part = SimpleNamespace(examples=("images", "11"))
    request = TrainStudents(
        "distill", "server", STUDENT, part, part, {}, schedule, ((TEACHER, ("local", "x")),) * teachers, [], 1.0,
        settings, 0,
    )  # fmt: skip
    return dataclasses.replace(request, **changes)


@pytest.mark.parametrize(
    ("request_", "flops"),
    [
        (students(OfflineSchedule("offline")), 11 * 4 * 3 * S),
        (students(OfflineSchedule("offline"), 2), 11 * (4 * 3 * S + 2 * T)),  # each answers once
        (students(OfflineSchedule("offline"), 1, augment="crop_flip"), 11 * 4 * (3 * S + T)),
        (students(OfflineSchedule("offline"), 1, originals=("images", "13")), 11 * 4 * 3 * S + 13 * T),
        (students(AverageSchedule("average", 0.9, 1)), 11 * 4 * 4 * S),
        (students(SnapshotSchedule("snapshot")), 11 * 4 * 4 * S),
        (students(MutualSchedule("mutual", 3)), 11 * 4 * 3 * 3 * S),
        (PickStudent("picked", "student", ("distill", "x"), 0), 0),
        (ReleaseRecords("records", "t", TEACHER, ("local", "x"), ("images", "17"), "top", None), 17 * T),
        (MakeImages("synthetic", "server", TEACHER, ("local", "x"), {}, None, [], [], 0), None),
    ],
)
def test_flops_of_stages(request_, flops):
    """Four of the nine requested epochs were trained."""
    artifact = SimpleNamespace(info={"epochs": [{}] * 4})
    assert StageCounter(STORE).flops(request_, artifact) == flops


def test_records_are_sent_beside_the_model():
    request = ReleaseRecords("records", "t", TEACHER, ("local", "x"), ("images", "17"), "top", None)
    assert sent_bytes(request, SimpleNamespace(info={"released": {"bytes": 123}})) == 123
    assert sent_bytes(students(OfflineSchedule("offline")), SimpleNamespace(info={})) == 0
