"""What a newcomer types wrong is answered with the key, name or form that is right."""

import pytest

from knot_runner.cli.main import main
from knot_runner.cli.parsers import parser_of
from knot_runner.composing.commands import compose_all
from knot_runner.util.errors import MAX_NAMES, closest, nearest
from tests.golden.messages import check, refuses

KEYS = [
    "trainig.rounds", "mehtod.schedul.rounds", "lr", "clients", "batch_size", "learning_rate", "method.when",
    "training.temperature", "name",
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


def test_upper_and_lower_case_do_not_hide_what_was_meant():
    assert nearest("FEMNIST", ["femnist", "mnist"]) == " (did you mean 'femnist'?)"
    assert nearest("iemocap", ["IEMOCAP", "MELD"]) == " (did you mean 'IEMOCAP'?)"


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("fedvag", ["fedavg", "fedprox"], "fedavg"),  # two letters swapped
        ("feddyn", ["fedavg", "fedmd", "fedprox"], None),
        ("fedal", ["fedavg", "fedala"], "fedala"),
        ("fede", ["federated_distance", "fedmd_long_name"], "federated_distance"),  # the only one that begins so
        ("fed", ["fedavg_x", "fedprox_x"], None),
        ("x", ["y"], None),
        ("tabel1", ["chill/table1", "chill/table2"], "chill/table1"),
    ],
)
def test_near_spellings_are_at_most_two_edits_away_or_begin_one_name(typed, known, meant):
    assert closest(typed, known) == meant


def test_many_names_are_not_listed():
    names = [f"{number}{number}" for number in range(MAX_NAMES)]
    assert nearest("x", names, listed_by="ls") == ". Run 'ls' to list them"
    assert nearest("x", names) == f" (there is: {', '.join(sorted(names))})"
    assert nearest("x", [*names, "y" * 9]) == ""


WRONG = [
    "task=femnist method=knot", "reproduce zzz", "ls methods", "--config-dir=. ls", "task=femnist paths.out=",
    "femnist", "chill/table1", "check chill/table1", "--task=femnist", "--config-dir", "data task=mnist",
    "reproduce experiment=kd/mnist", "plot chill/fig4 --format=pdf", "table chill/table1 --stale=rerun",
    "task=femnist hardware=gpu", "task=femnist method=distil", "check task=femnist hardware.device=gpu",
    "check task=sa hardware.devices=[cuda:0,gpu]", "task=femnist fleet.deadline=8",
    "task=femnist method=ditto method.lam=2", "task=femnist seed=0:3", "task=femnist model.hidden=100",
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


def test_a_folder_of_runs_that_is_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "out").touch()
    assert main(["table", "kd/mnist", f"paths.out={tmp_path / 'out'}"]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'out'}" in told and len(told) < 300


def test_data_in_a_file_are_refused_and_in_a_folder_to_come_are_absent(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "mnist", f"paths.data={tmp_path / 'file'}"]) == 2
    assert f"paths.data={tmp_path / 'file'}: not a folder" in capsys.readouterr().err
    assert main(["data", "mnist", f"paths.data={tmp_path / 'later'}"]) == 0
    assert "absent" in capsys.readouterr().out


def test_partition_in_the_help_fits_the_embedded_images(tmp_path):
    (line,) = [line for line in parser_of("plot").epilog.splitlines() if "plot partition" in line]
    words = [word for word in line.split() if "=" in word]
    assert main(["plot", "partition", *words, f"paths.out={tmp_path}"]) == 0
    assert list(tmp_path.glob("figures/*.png"))
