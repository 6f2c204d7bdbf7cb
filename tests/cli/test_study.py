"""``hydra/sweeper=optuna``: trials are ordinary runs, chosen by examples that clients hold out. Optuna is a fake."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score

from knot_runner.cli import study
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.engine.examples import normalized
from knot_runner.models.network import build_network
from knot_runner.pipelines.clients import make_setup
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.parties.setup import make_federation
from tests.contents import read_content, write_content
from tests.golden.messages import refused, refuses
from tests.of_papers import of_papers
from tests.tiny import TINY_IMAGES, TINY_PARTIES, TINY_TAUGHT, replaced

OPTUNA = "hydra/sweeper=optuna"
SEARCHED = ("training.batch_size=8", "training.lr=0.01")
SMALL = [one for one in TINY_IMAGES if one not in SEARCHED]
RUN = [*replaced(SMALL, "training.rounds=1", "training.local_epochs=1"), "method=fedavg", "partition.valid=0.2"]
SPACE = ["training.batch_size=4,8", "training.lr=tag(log,interval(0.01,1))"]


class FakeStudy:
    """Draws the ends of every range in turn; as ``optuna.study.Study``."""

    made: list = []

    def __init__(self, direction, sampler):
        self.direction, self.seed, self.trials = direction, sampler, []
        FakeStudy.made.append(self)

    def ask(self, space):
        number = len(self.trials)
        ends = {key: one.choices if hasattr(one, "choices") else [one.low, one.high] for key, one in space.items()}
        params = {key: values[number % len(values)] for key, values in ends.items()}
        self.trials.append(SimpleNamespace(number=number, params=params, value=None))
        return self.trials[-1]

    def tell(self, trial, value, state=None):
        assert (value is None) == (state == "FAIL")
        trial.value = value

    @property
    def best_trial(self):
        sign = 1 if self.direction == "maximize" else -1
        return max((one for one in self.trials if one.value is not None), key=lambda one: sign * one.value)


def _range(kind):
    return lambda low, high, log=False, step=None: SimpleNamespace(low=low, high=high, log=log, step=step, kind=kind)


@pytest.fixture
def fake(monkeypatch):
    modules = {name: ModuleType(name) for name in ("optuna", "optuna.distributions")}
    whole, kinds = modules["optuna"], modules["optuna.distributions"]
    whole.logging = SimpleNamespace(set_verbosity=lambda level: None, ERROR=40)
    whole.samplers = SimpleNamespace(TPESampler=lambda seed, constant_liar: (seed, constant_liar))
    whole.trial = SimpleNamespace(TrialState=SimpleNamespace(FAIL="FAIL"))
    whole.create_study = FakeStudy
    kinds.FloatDistribution, kinds.IntDistribution = _range("float"), _range("int")
    kinds.CategoricalDistribution = lambda choices: SimpleNamespace(choices=choices)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr(FakeStudy, "made", [])


def results(out):
    return {path.parent: json.loads(path.read_text()) for path in Path(out).glob("*/*/*/result.json")}


def test_study_runs_trials_once_and_selects_by_validation(tmp_path, fake, capsys):
    words = [*RUN, *SPACE, OPTUNA, "hydra.sweeper.n_trials=2", "hydra.sweeper.sampler.seed=5"]
    words += [f"paths.output_dir={tmp_path}"]
    assert main(words) == 0
    printed = capsys.readouterr()
    runs = results(tmp_path)
    assert len(runs) == 2 and FakeStudy.made[0].seed == (5, False) and FakeStudy.made[0].direction == "maximize"
    shown = printed.out.splitlines()
    best = Path(shown[-1])
    assert runs[best]["valid"]["accuracy"] == max(run["valid"]["accuracy"] for run in runs.values())
    assert shown[0].startswith("best of 2 trials: training.batch_size=")
    measures = runs[best]["valid"]["accuracy"], runs[best]["metrics"]["accuracy"]["ALL"]
    assert shown[1] == "valid.accuracy {:.4f}; on the test examples {:.4f}".format(*measures)
    assert printed.err.count("trial ") == 2 and printed.err.count("hardware: CPU") <= 1
    again = shlex.split(shown[2])
    assert again[0] == "knot-runner" and compose_all(again[1:])[0][0].folder == best
    before = {folder: (folder / "result.json").stat().st_mtime_ns for folder in runs}
    assert main([*words, "report={objective: valid.loss}"]) == 0  # report is in no run id
    assert {folder: (folder / "result.json").stat().st_mtime_ns for folder in results(tmp_path)} == before
    lowest = min(runs, key=lambda folder: runs[folder]["valid"]["loss"])
    assert capsys.readouterr().out.splitlines()[-1] == str(lowest) and FakeStudy.made[1].direction == "minimize"


def test_valid_metrics_match_held_out_recount(tmp_path):
    """The final weights, loaded into a plain network, are asked about each client's held-out rows."""
    words = [*RUN, f"paths.output_dir={tmp_path}"]
    assert main(words) == 0
    ((folder, result),) = results(tmp_path).items()
    (job,), _ = compose_all(words)
    setup = make_setup(run_context(job, lambda *_: None, lambda _: None))
    rows, trained_on = (torch.cat(setup.federation.rows(split)) for split in ("valid", "train"))
    assert 0 < len(rows) < len(trained_on) and not set(rows.tolist()) & set(trained_on.tolist())
    network = build_network(setup.networks[0]).eval()
    network.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        logits = network(normalized(setup.data, rows, torch.float32))
    labels = setup.data.labels[rows]
    assert result["valid"]["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert result["valid"]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")
def test_optuna_itself_draws_the_same_trials_again(tmp_path, capsys):
    words = [*RUN, *SPACE, OPTUNA, "hydra.sweeper.n_trials=2", f"paths.output_dir={tmp_path}"]
    shown = []
    for _ in range(2):
        assert main(words) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and len(results(tmp_path)) == 2


@pytest.mark.parametrize(("space", "expected"), [
    ("training.lr=interval(0.1,1)", {"low": 0.1, "high": 1.0, "log": False, "kind": "float"}),
    ("training.lr=tag(log,interval(0.1,1))", {"low": 0.1, "high": 1.0, "log": True}),
    ("training.local_epochs=int(interval(1,9))", {"low": 1, "high": 9, "log": False, "kind": "int"}),
    ("training.local_epochs=range(1,10,3)", {"low": 1, "high": 7, "step": 3, "kind": "int"}),
    ("training.lr=range(0.1,0.3,0.1)", {"choices": ["0.1", "0.2"]}),
    ("training.lr=choice(1,0.5)", {"choices": ["1", "0.5"]}), ("method=glob(fedprox*)", {"choices": ["fedprox"]}),
])  # fmt: skip
def test_study_distribution_reads_spaces_as_hydra_does(space, expected, fake):
    (override,) = study.parse_overrides([space])
    distribution = vars(study._distribution(override, None))
    assert {key: distribution[key] for key in expected} == expected
    assert type(distribution.get("low")) is type(expected.get("low"))


@pytest.mark.parametrize("words", [
    "", "seed=0,1", "hydra.sweeper.n_trials=0 S", "hydra.sweeper.direction=minimize S", "hydra.sweeper.n_jobs=0 S",
    "hydra/sweeper=ax S", "training.lr=interval(1,0.5)", "training.lr=tag(log,interval(0,1))", "S partition.valid=null",
    "S report={objective: accuracy}", "S report={objective: valid.acuracy}",
    "S method=finetune report={objective: valid.loss}",
])  # fmt: skip
def test_study_that_cannot_be_is_refused(words, fake, tmp_path, capsys):
    asked = words.replace("S", " ".join(SPACE)).replace(": ", ":").split()
    given = [one for one in RUN if one.partition("=")[0] not in {word.partition("=")[0] for word in asked}]
    refused(capsys, *given, f"paths.output_dir={tmp_path}", OPTUNA, *asked)


@pytest.mark.parametrize("words", of_papers([
    "task=sa method=teachers training.local.lr=0.1,0.2", "task=mnist method=coreset task.max_examples=50,60",
    "task=gaussians method.fedwad.t=0.2,0.4", "task=mnist method=data_free training.distill.lr=1,2",
    "task=mnist method=kd training.distill.select=best training.distill.lr=1,2 report={objective:valid.accuracy}",
    "method=sinkhorn_e method.loss.epsilon=0.1,0.2", "method=sinkhorn_e training.local.lr=0.1,0.2",
    "task=mnist method=kd training=small training.distill.lr=1,2",
    "task=femnist method=sinkhorn_e training.distill={select:last,lr:1},{select:last,lr:2}",
]))  # fmt: skip
def test_study_rejects_search_without_comparable_metric(words, fake, capsys):
    refused(capsys, *words.split(), OPTUNA)


def test_optuna_is_an_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(capsys, *RUN, *SPACE, OPTUNA)


def test_study_fails_without_any_trial_value(tmp_path, fake, capsys):
    words = [*RUN, "training.lr=1e30,1e31", OPTUNA, "hydra.sweeper.n_trials=1", f"paths.output_dir={tmp_path}"]
    assert main(words) == 2
    assert "no trial has a value of valid.accuracy. See the messages above" in capsys.readouterr().err


def _kept(out: Path, stage: str) -> list[float]:
    """The validation value of the epoch that each of the store's ``stage`` kept, from its own record of epochs."""
    kept = []
    for path in Path(out).glob(f"artifacts/{stage}/*/info.json"):
        info = json.loads(path.read_text())
        epochs = [json.loads(line) for line in (path.parent / "rounds.jsonl").read_text().splitlines()]
        values = {0: None} | {row["epoch"]: row["valid"] for row in epochs}
        kept.append(info["best_score"] if info["best_epoch"] == 0 else values[info["best_epoch"]])
    return kept


def test_study_ranks_distillations_by_epoch_selection_metric(tmp_path, fake, capsys):
    words = replaced(TINY_PARTIES, "training.distill.lr=0.001,0.1")
    assert main([*words, OPTUNA, "hydra.sweeper.n_trials=2", f"paths.output_dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    scores = _kept(tmp_path, "distill")
    assert len(scores) == 2 and len(results(tmp_path)) == 2
    assert shown[1].startswith(f"valid.loss {-max(scores):.4f}")  # a loss is kept as its negative
    assert FakeStudy.made[0].direction == "minimize"


def test_run_study_runs_each_batch_as_grid(fake):
    begun = []

    def sweep(command):
        begun.append([job.run_id for job in command.jobs])
        assert command.sweep and "Joblib" in command.hydra.launcher["_target_"]
        return 0

    words = [*RUN, *SPACE, OPTUNA, "hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=2", "hydra/launcher=joblib"]
    with refuses():
        study.run_study(words, sweep)
    assert [len(jobs) for jobs in begun] == [2, 2, 1] and FakeStudy.made[0].seed == (0, True)


def test_run_study_rejects_invalid_later_trial(fake):
    begun = []
    words = ["task=femnist", "partition=dirichlet", "partition.valid=0.2", "method=fedavg,sinkhorn_e", OPTUNA]
    with refuses():
        study.run_study(words, begun.append)
    assert [command.jobs[0].method.name for command in begun] == ["fedavg"]


def test_valid_value_returns_none_without_result_or_metric(tmp_path):
    (job,), _ = compose_all([*RUN, f"paths.output_dir={tmp_path}"])
    assert study.valid_value(job, "loss") is None and read_content(job.folder) is None
    write_content(job.folder, {"status": "done", "valid": {"loss": 1.0}})
    assert study.valid_value(job, "loss") == 1.0 and study.valid_value(job, "f1") is None
    start = dict.fromkeys(("id_accuracy", "ood_accuracy", "ood_weighted", "all_accuracy", "worst_decile"), 0.5)
    start |= {"id_loss": 1.0, "ood_loss": 1.0}
    point = start | {"step": 1, "epochs": 1, "sgd_steps": 2.0, "alpha": 1.0}
    curve = {"id_at_matched_ood": {}, "gain_at_matched_ood": 0.0, "area": 0.0}
    points = [point | {"valid_accuracy": value} for value in (0.1, 0.7, 0.2)]
    chosen = {"kind": "soup", "start": start, "points": points, "chosen": 1, **curve}
    write_content(job.folder, {"personalization": chosen})
    assert study.valid_value(job, "accuracy") == 0.7


def test_student_value_returns_last_recorded_value():
    rows = [{"round": 0, "teacher": 0.9}, {"round": 1, "student": 0.5}, {"round": 2, "student": 0.7}]
    assert study.student_value([*rows, {"distill student": {"student": 0.1}}], "f1") == 0.7
    assert study.student_value([{"round": 0, "A": 0.3}, {"round": 1, "epoch": 2, "valid": 0.4}], "f1") == 0.4
    assert study.student_value([{"round": 2, "epoch": 0, "loss": 1.5}], "loss") == 1.5
    assert study.student_value([{"round": 0, "student": 0.5}], "loss") is None


def test_valid_value_equals_macro_f1_of_student(tmp_path):
    """The kept weights, loaded into a plain network, are asked about the student's valid rows."""
    words = [*TINY_TAUGHT, "method.valid=0.1", f"paths.output_dir={tmp_path}"]
    assert main(words) == 0
    (job,), _ = compose_all(words)
    context = run_context(job, lambda *_: None, lambda _: None)
    task = context.services.parties(context)
    federation = make_federation(context, task)
    student = federation.server
    network = build_network(student.network)
    network.load_state_dict(load_file(job.folder / "model.safetensors"))
    network.eval()
    part = task.datasets["student"].splits["valid"]
    with torch.no_grad():
        pixels = torch.as_tensor(part.pixels / 255 if part.pixels.dtype == np.uint8 else part.pixels).float()
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (federation.mean, federation.std))
        predicted = network((pixels - mean) / std).argmax(1).numpy()
    expected = f1_score(part.labels, predicted, average="macro", labels=range(student.network.classes))
    assert study.valid_value(job, "f1") == pytest.approx(float(expected))
