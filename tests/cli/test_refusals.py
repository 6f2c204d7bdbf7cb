"""What a person may type wrong: one line that names the key and what is right, exit code 2, and nothing is left."""

from __future__ import annotations

import pytest

from knot_runner.composing.hydra_compose import UNSUPPORTED
from tests.golden.messages import refused
from tests.of_papers import of_papers
from tests.tiny import TINY, replaced

#: Of a run that would begin otherwise, with the smallest one.
RUNS = [
    "task.temprature=3", "+method.temprature=3", "method.normalise=true", "methd=sinkhorn_e", "method=sinkhron_e",
    "task=ercc", "experiment=knot_table9", "method.weighting=Z", "method.loss.name=hinge", "training.local.epochs=-5",
    "training.local.lr=nan", "seed=x", "task.labels.coordinates=[[0],[1]]",
    "task.labels.coordinates=[[0],[1],[2],[3],[4,5]]", "hardware=cuda", "hardware.device=gpu",
    "task.source=local paths.data_dir=null", "task.source=local paths.data_dir=/nowhere",
    "model.vocab=/nowhere/vocab.txt", "model.weights=/nowhere", "method.loss.epsilon=1e-9",
    "task=erc method.loss.solver=line",
    "plugins=[no_such_module]", "a=[1",
    "--frobnicate", "+report.x=1", "++method.server_distillation.loss.name={a:1}", "+report={metrics:[[1]]}",
    "method.loss.name=inf", "method.loss.name={a:1}",
]  # fmt: skip
#: Names, forms and flags of a command.
COMMANDS = [
    "task=femnist method=knot", "reproduce zzz", "ls methods", "--config-dir=. ls", "ls metric",
    "task=femnist paths.output_dir=",
    "femnist", "chill/table1", "check chill/table1", "--task=femnist", "--config-dir", "data task=mnist",
    "reproduce experiment=kd/mnist", "plot chill/fig4 --format=pdf", "table chill/table1 --stale=rerun", "tabel table2",
    "table knot_tabel2", "table fedwad/toy experiment=knot/table2", "table fedwad/toy seed=0",
    "task=femnist hardware=gpu", "task=femnist method=distill", "check task=femnist hardware.device=gpu",
    "check task=sa hardware.devices=[cuda:0,gpu]", "task=femnist fleet.deadline=8", "task=femnist seed=0:3",
    "task=femnist method=ditto method.lambd=2", "task=femnist model.hidden=100", "task=femnist evaluate.matrix=yes",
    "plot chill/fig4 report.kind=curve", "hydra/launcher=joblib hydra.launcher.n_jobs=two", "data mnst",
    "data mnist --fech", "data mnist seed=1",
    "data mnist --fetch", "verify", "verify a b", "verify a --rounds=0", "verify a --rounds=two", "verify a --round=2",
    "verify a --memory=0", "verify a paths.output_dir=", "verify a seed=1",
    "experiment=chill/table1 task=femnist paper=1", "check --quick task=femnist +report.kind=gridd",
    "task=femnist seed=0,1 +report.kind=gridd",
    *(f"task=femnist {name}" for name in UNSUPPORTED if name.startswith("--")),
]  # fmt: skip
#: Values, lists, interpolations, and Hydra's own keys.
VALUES = [
    "task.datasets.Food.role=local", "task.datasets.Grocery.role=global", "seed=glob(*)", "seed=interval(0,1)",
    "method=glob(zz*)", "=5", "seed=range(0,1e9)", "seed=range(0,1,0)", "seed=range(0,inf)",
    "hydra.sweeper.max_batch_size=1,2", "hydra.sweeper.max_batch_size=0", "seed=range(5,0)", "seed=range(5,5)",
    "seed=1,,2", "seed=[1", 'seed="x', "seed=1]", "seed=foo(1)", "seed=range(a,b)", "seed=1;2", "seed", "+seed=1",
    "seed.x=1,2", "~nope", "+method=entropy_a", "~method=[a]", "model@x=bert_tiny", "seed=${nope}", "seed=${seed}",
    "++report=${x}", "task.datasets.Cell.labels.5=${:eed}", "task.max_examples=${:eed},5", "sweep=${x}",
    "seed=${oc.env:NO_SUCH_VARIABLE}",
    "--config-path=/", "method=[fedavg,fedprox]", "task=[sa,erc]", "task={a:1}", "experiment=glob(mine/*)",
    "seed=range(0,200) training.distill.epochs=range(1,200)", "hydra.run.dir=x", "hydra.job.chdir=true",
    "check +sweep.sed=1", "check ++sweep={method.temprature:1}", "check +sweep.seed=1,2", "check sweep=1",
    "check +sweep={arm:{a:{seed:1}}}", "table chill/table1 report.kind=[a]", "+hydra.callbacks.x.y=1",
    "check +task.datasets.Cell.labels={0:low,high:high}", "check task.labels.names=[true,b]",
    "hydra/job_logging=default", "hydra/sweeper=basic", "hydra.nope=1", "--cfg=jobs",
]  # fmt: skip
#: Tasks, methods and trainings that cannot be combined, points of classes, and verbs without what they need.
MISFITS = [
    "task=gaussians method=fedavg", "task=mnist method=federated_distance", "task=sa method=temperature_probe",
    "task=image_sets method=fedavg", "task=gaussians model=bert_tiny", "task=gaussians training=published",
    "task=gaussians training=quick training.rounds=3", "task=femnist method=soup partition=centralized",
    "task=image_sets partition=iid", "task=mnist_fedwad method.clustering.graph=sparse0",
    "task=mnist_fedwad method.clustering.clusters=0", "task=mnist_fedwad method.clustering.otdd.fedwad.t=1.5",
    "task=gaussians method.fedwad.support=0", "task=nli method=entropy_a training=published",
    "task=mnist method=kd training=published", "task=erc method=fedavg training=published",
    "task=femnist method=fedavg ~training", "task=mnist task.geometry=superclasses",
    *(f"task=cifar10 task.geometry=superclasses {word}task.superclasses.{rest}" for word, rest in (
        ("", "animals=[cat]"), ("+", "more=[cat]"), ("+", "more=[zebra]"))),
    "task=mnist task.coordinates=[[0.0],[0.0],[0.0],[0.0],[0.0],[0.0],[0.0],[0.0],[0.0],[0.0]]",
    "task=femnist arm=near", "experiment=chill/table1 arm=near", "claims", "claims seed=0", "claims --al",
    "claims knot/bias", "claims knot_tabel3", "claims kd/mnist seed=0", "report", "report seed=1", "report ../x",
    "plot partition task=sa",
]  # fmt: skip
#: Keys that were meant otherwise, of FedAvg.
KEYS = [
    "training.batch", "training.E", "join_ratio", "global_rounds", "trainig.rounds", "mehtod.schedul.rounds",
    "training.lr.decay", "lr", "clients", "batch_size", "learning_rate",
    "method.when", "training.temperature", "name", "method.personalization.epochs", "method.server_distillation.epochs",
    "method.clustering.clusters",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("KNOT_DATA", raising=False)


@pytest.mark.parametrize("words", of_papers(RUNS))
def test_run_that_cannot_be_is_refused(words, tmp_path, capsys):
    refused(capsys, *replaced([*TINY, f"paths.output_dir={tmp_path / 'out'}"], *words.split()))
    suffixes = (".json", ".jsonl", ".yaml", ".tmp", ".safetensors")
    assert not [path for path in tmp_path.rglob("*") if path.suffix in suffixes and "artifacts" not in path.parts]


@pytest.mark.parametrize("words", of_papers([*COMMANDS, *VALUES, *MISFITS]))
def test_command_that_cannot_be_is_refused(words, tmp_path, capsys):
    refused(capsys, *words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", KEYS)
def test_unknown_key_is_rejected_with_hint(key, capsys):
    refused(capsys, "task=femnist", "method=fedavg", "partition=dirichlet", f"{key}=1")
