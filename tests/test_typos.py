"""What a newcomer types wrong is answered with the key, name or form that is right."""

import pytest
from rich.console import Console

from knot_runner.cli.main import HELP, main
from knot_runner.cli.verbs.preset import PLOT_HELP
from knot_runner.composing.commands import compose_all
from knot_runner.util.errors import MAX_NAMES, UserError, nearest

KEYS = [
    ("trainig.rounds", "(did you mean 'training.rounds'?)"),
    ("trainig.round", "(did you mean 'training.rounds'?)"),
    ("mehtod.schedul.rounds", "(did you mean 'method'?)"),  # a plain FedAvg has no rounds of a schedule
    ("training.round", "(did you mean 'rounds'?) in training"),
    ("lr", "(did you mean 'training.lr'?)"),
    ("clients", "(did you mean 'partition.clients'?)"),
    ("num_clients", "(did you mean 'partition.clients'?)"),
    ("local_epochs", "(did you mean 'training.epochs'?)"),
    ("batch_size", "(did you mean 'training.batch'?)"),
    ("optimizer", "(did you mean 'training.optimiser'?)"),
    ("learning_rate", "(did you mean 'training.lr'?)"),
    ("dataset", "(did you mean 'task'?)"),
    ("method.when", "(did you mean 'method=fedsoup'?)"),  # soup.when: during
    ("training.temperature", "(did you mean 'method.temperature'?)"),
    ("training.seed", "(did you mean 'seed'?)"),
    ("seeds", "(did you mean 'seed'?)"),  # not report.seeds, which only presets have
    ("kind", "(did you mean 'model.kind' or 'partition.kind' or 'task.kind'?)"),
    ("name", "(there is: "),  # of six groups: no hint
]


@pytest.mark.parametrize(("key", "hint"), KEYS, ids=[key for key, _ in KEYS])
def test_an_unknown_key_is_answered_with_the_whole_key_that_was_meant(key, hint):
    with pytest.raises(UserError) as problem:
        compose_all(["task=femnist", "method=fedavg", "partition=dirichlet", f"{key}=1"])
    assert str(problem.value).startswith(f"{key}: there is no such setting {hint}")


def test_what_a_preset_brings_for_its_report_is_no_setting_that_was_meant():
    with pytest.raises(UserError) as problem:
        compose_all(["experiment=chill/table1", "task=femnist", "paper=1"])
    assert str(problem.value).startswith("paper: there is no such setting") and "report.paper" not in str(problem.value)


def test_a_key_in_a_plain_value_is_told_that_there_is_none():
    with pytest.raises(UserError, match=r"^training.rounds.x: training.rounds has no settings in it; training.rounds="):
        compose_all(["task=femnist", "training.rounds.x=1"])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("personalisation.epochs", "+method.personalisation.kind=soup sets it"),
        ("distil.epochs", "method=feddf sets it, with method.algorithm=NAME that of another method"),
        ("clustering.clusters", "method=clustered_fedavg sets it, with method.algorithm=NAME that of another method"),
    ],
)
def test_a_key_of_a_piece_that_a_method_lacks_is_told_how_to_set_the_piece(key, hint):
    name = key.partition(".")[0]
    with pytest.raises(UserError) as problem:
        compose_all(["task=femnist", "method=fedavg", f"method.{key}=1"])
    assert str(problem.value) == f"method.{key}: method.{name} is null; {hint}"


def test_upper_and_lower_case_do_not_hide_what_was_meant():
    assert nearest("FEMNIST", ["femnist", "mnist"]) == " (did you mean 'femnist'?)"
    assert nearest("iemocap", ["IEMOCAP", "MELD"]) == " (did you mean 'IEMOCAP'?)"


def test_many_names_are_not_listed_where_a_command_lists_them():
    names = [f"{number}{number}" for number in range(MAX_NAMES)]
    assert nearest("x", names, listed_by="ls") == f" (there is: {', '.join(sorted(names))})"
    assert nearest("x", [*names, "y" * 9], listed_by="ls") == f" (there are {MAX_NAMES + 1}: 'ls' lists them)"
    assert nearest("x", [*names, "y" * 9]).endswith(f"{'y' * 9})")


WRONG = [
    (["task=femnist", "method=knot"], "method=knot: there is no such method (there are "),
    (["reproduce", "zzz"], "zzz: there is no such preset (there are "),
    (["report", "experiment=chill/table1"], "report takes the name alone, as in 'knot-runner report chill/table1'"),
    (["table", "+experiment=chill/table1"], "table takes the name alone, as in 'knot-runner table chill/table1'"),
    (["claims", "chill/table1,knot/table2"], "claims: takes one preset at a time, not chill/table1 and knot/table2"),
    (["plot", "chill/fig4", "task=femnist", "chill/fig6"], "plot: takes one preset at a time, not chill/fig4 and "),
    (["table", "task=femnist"], "table: needs the name of a preset"),
    (["ls", "methods"], "methods: ls has no such group (did you mean 'method'?)"),
    (["ls", "method", "kd"], "kd: ls has no such group (there is: encoder, experiment, fleet, hardware, method, "),
    (["--config-dir=.", "ls"], "ls: a command stands first, as in 'knot-runner ls --config-dir=.'"),
    (["task=femnist", "check"], "check: a command stands first, as in 'knot-runner check task=femnist'"),
    (["compare", "by=method.name"], "by: is a flag of compare; --by=method.name is right"),
    (["task=femnist", "paths.out="], "paths.out: is empty; a folder is right"),
    # words without their "=", and with too much
    (["femnist"], "femnist: is no command; 'knot-runner task=femnist' is right"),
    (["task", "femnist"], "task: is no command; 'knot-runner task=femnist' is right"),
    (["task:femnist"], "task:femnist: is no command; 'knot-runner task=femnist' is right"),
    (["chill/table1"], "chill/table1: is no command; 'knot-runner experiment=chill/table1' is right"),
    (["method", "-m"], "method: is no command; 'knot-runner method=NAME' is right"),
    (["run", "task=femnist"], "run: there is no such command; a run has none, as in 'knot-runner task=femnist'"),
    (["check", "chill/table1"], "chill/table1: has no value; experiment=chill/table1 is right"),
    (["plot", "partition", "femnist"], "femnist: has no value; task=femnist is right"),
    (["--task=femnist"], "--task=femnist: is a setting; task=femnist, without --, is right"),
    (["--model"], "--model: is a setting; model=NAME, without --, is right"),
    (["--training.lr=1"], "--training.lr=1: is a setting; training.lr=1, without --, is right"),
    (["--config-dir"], "--config-dir: without =DIR; a folder of YAML is right, as in --config-dir=mine"),
    (["data", "task=mnist"], "task=mnist: data takes the name alone, as in 'knot-runner data mnist'"),
    (["reproduce", "experiment=kd/mnist"], "reproduce takes the name alone, as in 'knot-runner reproduce kd/mnist'"),
    (["reproduce", "paths.data=nowhere"], "paths.data: nowhere is not a folder; 'knot-runner data' shows"),
    # flags of another verb, and ones that are spelled alike
    (["plot", "chill/fig4", "--format=pdf"], "no such flag of plot (did you mean '--formats'?)"),
    (["plot", "chill/fig4", "-o", "fig.png"], "-o: there is no such flag of plot (there is: --config-dir"),
    (["table", "chill/table1", "--stale=rerun"], "--stale=rerun: there is no such flag of table (there is"),
    (["report", "kd/mnist", "--open"], "--open: there is no such flag of report (there is: --config-dir=DIR, --index)"),
    (["ls", "--all"], "--all: there is no such flag (there is: --config-dir=DIR)"),
    (["ls", "task=femnist"], "task: ls takes names of groups, --config-dir=DIR and plugins=[FILE.py]"),
    # names and values of other programs
    (["task=femnist", "hardware=gpu"], "hardware=gpu: there is no such hardware (did you mean 'cuda'?)"),
    (["task=femnist", "method=distil"], "method=distil: there is no such method (did you mean 'kd'?)"),
    (["check", "task=femnist", "hardware.device=gpu"], "hardware.device: 'gpu' is none of cpu, cuda, cuda:N, auto"),
    (["check", "task=sa", "hardware.devices=[cuda:0,gpu]"], "hardware.devices: 'gpu' is none of cpu, cuda, cuda:N"),
    (["task=femnist", "fleet.deadline=8"], "fleet.deadline: no fleet is chosen; fleet=NAME chooses one (phones, "),
    (["task=femnist", "privacy.epsilon=8"], "no privacy is chosen; privacy=NAME chooses one (user_level)"),
    (["task=femnist", "method=ditto", "method.lam=2"], "there is no such setting (did you mean 'method.ditto.lam'?)"),
    (["task=erc", "training.lr=1"], "'training.local.lr' or 'training.pretrain.lr' or 'training.distil.lr'?)"),
    (["task=femnist", "seed=0:3"], "seed: expected a whole number, got '0:3'; range(0,3) is 0, 1 and 2, a run each"),
    (["task=femnist", "model.hidden=100"], "model.hidden: expected a list, got 100; [100] is one"),
    (["task=femnist", "evaluate.matrix=yes"], "evaluate.matrix: expected a whole number, got 'yes'; end is right, too"),
    (["plot", "chill/fig4", "report.kind=curve"], "report.kind: there is no figure 'curve' (did you mean 'curves'?)"),
    (["hydra/launcher=joblib", "hydra.launcher.n_jobs=two"], "hydra.launcher.n_jobs=two: expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_a_wrong_command_is_told_what_is_right(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert said in line and not list(tmp_path.iterdir())


def test_a_folder_of_runs_that_is_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "out").touch()
    assert main(["table", "kd/mnist", f"paths.out={tmp_path / 'out'}"]) == 2
    told = capsys.readouterr().err
    assert f"paths.out: {tmp_path / 'out'}: is not a folder; the one that the runs were" in told and len(told) < 300


def test_names_of_data_may_have_a_comma_between(tmp_path, capsys):
    assert main(["data", "mnist,usps", f"paths.data={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "\nmnist: " in f"\n{shown}" and "\nusps: " in f"\n{shown}"


@pytest.mark.parametrize(("width", "listed"), [(80, False), (119, False), (120, True)])
def test_a_narrow_terminal_lists_data_without_their_origin(width, listed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("knot_runner.cli.verbs.data.output", lambda: Console(width=width))
    assert main(["data", f"paths.data={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    (head,) = [line.split() for line in shown.splitlines() if line.startswith("data set")]
    assert ("licence" in head) == ("official" in head) == listed and "tasks" in head
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("meld ")] == ["erc"]
    assert ("GPL-3.0" in shown) == listed


def test_data_in_a_file_are_refused_and_in_a_folder_to_come_are_absent(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "mnist", f"paths.data={tmp_path / 'file'}"]) == 2
    assert f"paths.data: {tmp_path / 'file'}: is not a folder; the one that holds" in capsys.readouterr().err
    assert main(["data", "mnist", f"paths.data={tmp_path / 'later'}"]) == 0
    assert "absent" in capsys.readouterr().out


EXAMPLES = [line.split() for line in f"{HELP}\n{PLOT_HELP}".splitlines() if "plot" in line and "partition=" in line]


@pytest.mark.parametrize("words", EXAMPLES, ids=["help", "plot --help"])
def test_partitions_that_the_help_draws_fit_the_images_that_everybody_has(words, tmp_path):
    assert main(["plot", "partition", *(word for word in words if "=" in word), f"paths.out={tmp_path}"]) == 0
    assert list(tmp_path.glob("figures/*.png"))
