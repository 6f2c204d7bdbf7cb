"""What a newcomer types wrong is answered with the key, name or form that is right."""

import pytest

from knot_runner.cli.main import HELP, main
from knot_runner.cli.verbs.preset import PLOT_HELP
from knot_runner.composing.commands import compose_all
from knot_runner.util.errors import MAX_NAMES, nearest
from tests.golden.messages import check, refuses

KEYS = [
    "trainig.rounds", "trainig.round", "mehtod.schedul.rounds", "training.round", "lr", "clients", "num_clients",
    "local_epochs", "batch_size", "optimizer", "learning_rate", "dataset", "method.when", "training.temperature",
    "training.seed", "seeds", "kind", "name",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_an_unknown_key_is_answered_with_the_whole_key_that_was_meant(key):
    with refuses():
        compose_all(["task=femnist", "method=fedavg", "partition=dirichlet", f"{key}=1"])


def test_what_a_preset_brings_for_its_report_is_no_setting_that_was_meant():
    with refuses():
        compose_all(["experiment=chill/table1", "task=femnist", "paper=1"])


@pytest.mark.parametrize("key", ["personalisation.epochs", "distil.epochs", "clustering.clusters"])
def test_a_key_of_a_piece_that_a_method_lacks_is_told_how_to_set_the_piece(key):
    with refuses():
        compose_all(["task=femnist", "method=fedavg", f"method.{key}=1"])


def test_many_names_are_not_listed_where_a_command_lists_them():
    names = [f"{number}{number}" for number in range(MAX_NAMES)]
    assert nearest("x", names, listed_by="ls") == f" (there is: {', '.join(sorted(names))})"
    assert nearest("x", [*names, "y" * 9], listed_by="ls") == f" (there are {MAX_NAMES + 1}: 'ls' lists them)"
    assert nearest("x", [*names, "y" * 9]).endswith(f"{'y' * 9})")


WRONG = [
    "task=femnist method=knot", "reproduce zzz", "report experiment=chill/table1", "table +experiment=chill/table1",
    "claims chill/table1,knot/table2", "plot chill/fig4 task=femnist chill/fig6", "table task=femnist", "ls methods",
    "ls method kd", "--config-dir=. ls", "task=femnist check", "compare by=method.name", "task=femnist paths.out=",
    "femnist", "task femnist", "task:femnist", "chill/table1", "method -m", "run task=femnist", "check chill/table1",
    "plot partition femnist", "--task=femnist", "--model", "--training.lr=1", "--config-dir", "data task=mnist",
    "reproduce experiment=kd/mnist", "reproduce paths.data=nowhere", "plot chill/fig4 --format=pdf",
    "plot chill/fig4 -o fig.png", "table chill/table1 --stale=rerun", "report kd/mnist --open", "ls --all",
    "ls task=femnist", "task=femnist hardware=gpu", "task=femnist method=distil",
    "check task=femnist hardware.device=gpu", "check task=sa hardware.devices=[cuda:0,gpu]",
    "task=femnist fleet.deadline=8", "task=femnist privacy.epsilon=8", "task=femnist method=ditto method.lam=2",
    "task=erc training.lr=1", "task=femnist seed=0:3", "task=femnist model.hidden=100",
    "task=femnist evaluate.matrix=yes", "plot chill/fig4 report.kind=curve",
    "hydra/launcher=joblib hydra.launcher.n_jobs=two",
]  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_command_is_told_what_is_right(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    check(line)
    assert not list(tmp_path.iterdir())


EXAMPLES = [line.split() for line in f"{HELP}\n{PLOT_HELP}".splitlines() if "plot" in line and "partition=" in line]


@pytest.mark.parametrize("words", EXAMPLES, ids=["help", "plot --help"])
def test_partitions_that_the_help_draws_fit_the_images_that_everybody_has(words, tmp_path):
    assert main(["plot", "partition", *(word for word in words if "=" in word), f"paths.out={tmp_path}"]) == 0
    assert list(tmp_path.glob("figures/*.png"))
