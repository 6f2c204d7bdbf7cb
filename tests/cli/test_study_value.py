"""What trials are compared by, for every kind of run; side by side they are the trials that they are in turn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from knot_runner.cli import study
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.records import read_result, write_result
from tests.cli.test_study import OPTUNA, RUN, SPACE, FakeStudy, fake, results  # noqa: F401  the fixture among them
from tests.golden.messages import refuses
from tests.tiny import TINY_PARTIES, TINY_TAUGHT, replaced


def _kept(out: Path, stage: str) -> list[float]:
    """The validation value of the epoch that each of the store's ``stage`` kept, from its own record of epochs."""
    found = []
    for path in Path(out).glob(f"artefacts/{stage}/*/info.json"):
        info = json.loads(path.read_text())
        epochs = [json.loads(line) for line in (path.parent / "rounds.jsonl").read_text().splitlines()]
        values = {0: None} | {row["epoch"]: row["valid"] for row in epochs}
        found.append(info["best_score"] if info["best_epoch"] == 0 else values[info["best_epoch"]])
    return found


@pytest.mark.parametrize(("words", "metric", "stage"), [
    pytest.param([*TINY_TAUGHT, "training.distil.lr=0.01,0.1"], "f1", "distil", marks=pytest.mark.thorough),
    ([*replaced(TINY_PARTIES, "training.distil.lr=0.001,0.1")], "loss", "distil"),
])  # fmt: skip
def test_distillations_are_compared_by_what_chooses_their_epochs(words, metric, stage, tmp_path, fake, capsys):  # noqa: F811
    assert main([*words, OPTUNA, "hydra.sweeper.n_trials=2", f"paths.out={tmp_path}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    scores = _kept(tmp_path, stage)
    assert len(scores) == 2 and len(results(tmp_path)) == 2
    best = max(scores) * (-1 if metric == "loss" else 1)  # a loss is kept as its negative
    assert shown[1].startswith(f"valid.{metric} {best:.4f}")
    assert FakeStudy.made[0].direction == ("minimize" if metric == "loss" else "maximize")


def test_a_batch_is_drawn_before_it_runs_and_runs_as_one_grid(fake):  # noqa: F811
    begun = []

    def sweep(command):
        begun.append([job.run_id for job in command.jobs])
        assert command.sweep and "Joblib" in command.hydra.launcher["_target_"]
        return 0

    words = [*RUN, *SPACE, OPTUNA, "hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=2", "hydra/launcher=joblib"]
    with refuses():
        study.run_study(words, sweep)
    assert [len(jobs) for jobs in begun] == [2, 2, 1] and FakeStudy.made[0].seed == (0, True)


def test_what_a_later_trial_draws_is_looked_at_too(fake):  # noqa: F811
    begun = []
    words = ["task=femnist", "partition=dirichlet", "partition.valid=0.2", "method=fedavg,sinkhorn_e", OPTUNA]
    with refuses():
        study.run_study(words, begun.append)
    assert [command.jobs[0].method.name for command in begun] == ["fedavg"]


def test_a_trial_that_diverged_or_is_not_done_has_no_value(tmp_path):
    (job,), _ = compose_all([*RUN, f"paths.out={tmp_path}"])
    assert study.valid_value(job, "loss") is None and read_result(job.folder) is None
    write_result(job.folder, {"status": "done", "valid": {"loss": 1.0}})
    assert study.valid_value(job, "loss") == 1.0 and study.valid_value(job, "f1") is None
    points = [{"valid_accuracy": 0.1}, {"valid_accuracy": 0.7}, {"valid_accuracy": 0.2}]
    write_result(job.folder, {"status": "done", "personalisation": {"points": points, "chosen": 1}})
    assert study.valid_value(job, "accuracy") == 0.7


def test_the_last_round_that_says_a_students_value_counts():
    rows = [{"round": 0, "teacher": 0.9}, {"round": 1, "student": 0.5}, {"round": 2, "student": 0.7}]
    assert study.student_value([*rows, {"distil student": {"student": 0.1}}], "f1") == 0.7
    assert study.student_value([{"round": 0, "A": 0.3}, {"round": 1, "epoch": 2, "valid": 0.4}], "f1") == 0.4
    assert study.student_value([{"round": 2, "epoch": 0, "loss": 1.5}], "loss") == 1.5
    assert study.student_value([{"round": 0, "student": 0.5}], "loss") is None


@pytest.mark.thorough
def test_the_value_of_a_distillation_is_macro_f1_of_its_student_on_its_own_valid_part(tmp_path):
    """The kept weights, loaded into a plain network, are asked about the student's valid rows."""
    import torch
    from safetensors.torch import load_file

    from knot_runner.models.network import build_network
    from knot_runner.pipelines.context import run_context
    from knot_runner.pipelines.parties.setup import make_federation

    words = [*TINY_TAUGHT, f"paths.out={tmp_path}"]
    assert main(words) == 0
    (job,), _ = compose_all(words)
    context = run_context(job, lambda *_: None, lambda _: None)
    task = context.services.parties(context)
    federation = make_federation(context, task, context.store, None)
    student = federation.server
    network = build_network(student.network)
    network.load_state_dict(load_file(job.folder / "model.safetensors"))
    network.eval()
    part = task.datasets["student"].splits["valid"]
    with torch.no_grad():
        pixels = torch.as_tensor(part.pixels / 255 if part.pixels.dtype == np.uint8 else part.pixels).float()
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (federation.mean, federation.std))
        found = network((pixels - mean) / std).argmax(1).numpy()
    expected = f1_score(part.labels, found, average="macro", labels=range(student.network.classes))
    assert study.valid_value(job, "f1") == pytest.approx(float(expected))
