"""Privacy, fleets, costs and clusters apply to the messages of a custom federated method."""

import json

import pytest

from knot_runner.cli.main import main
from tests.tiny import EXAMPLES, TINY_IMAGES, replaced

METHOD = """
from dataclasses import dataclass

import knot_runner as kr
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import keep


@dataclass(kw_only=True)
class KeptSettings(kr.AveragingSettings):
    at: float
    often: float = 2
    selects = True


def fold(config, state, federation, round, mean, share):
    after, row = averaging.fold(config, state, federation, round, mean, share)
    return after, {**row, "at": config.at, "often": config.often}


kr.METHODS["kept"] = kr.Method(
    averaging.init, averaging.plan, averaging.message, fold, averaging.deployed, keep=keep, settings=KeptSettings
)
"""
FEDNOVA = (EXAMPLES / "fednova.py").read_text()
YAML = """
defaults:
  - /base/averaging@_here_
  - _self_
name: kept
algorithm: kept
at: 1
"""


def arrange(folder, name="kept", code=METHOD, yaml=YAML):
    (folder / f"{name}_method.py").write_text(code)
    (folder / "conf" / "method").mkdir(parents=True)
    (folder / "conf" / "method" / f"{name}.yaml").write_text(yaml)
    places = f"plugins=['{folder / f'{name}_method.py'}']", f"paths.output_dir={folder / 'out'}"
    return [*replaced(TINY_IMAGES, f"method={name}"), f"--config-dir={folder / 'conf'}", *places]


def rows_of(folder):
    (log,) = (folder / "out").glob("femnist/*/*/rounds.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_declared_method_runs_asynchronously_and_converts_options(tmp_path, capsys):
    own = [*arrange(tmp_path), "fleet=phones_async", "fleet.buffer=1"]
    assert main(own) == 0, capsys.readouterr().err
    rows = rows_of(tmp_path)
    assert rows[0]["at"] == 1.0 and isinstance(rows[0]["at"], float) and isinstance(rows[0]["often"], float)
    assert any(row["staleness"] > 0 for row in rows)


def arrange_fednova(folder):
    yaml = YAML.replace("kept", "fednova").replace("at: 1\n", "")
    return arrange(folder, "fednova", FEDNOVA, yaml)


def test_fednova_moves_by_mean_direction_times_mean_steps(tmp_path, capsys):
    """FedNova equals FedAvg if all clients take equally many steps."""
    assert len([line for line in FEDNOVA.splitlines() if line]) <= 25
    own = [word for word in arrange_fednova(tmp_path) if not word.startswith("partition.")]
    own += ["partition=iid", "partition.num_clients=4"]
    assert main(own) == 0, capsys.readouterr().err
    assert main(replaced(own, "method=fedavg")) == 0, capsys.readouterr().err
    nova, plain = ([*(tmp_path / "out").glob(f"femnist/{name}/*/rounds.jsonl")] for name in ("fednova", "fedavg"))
    for one, other in zip(nova[0].read_text().splitlines(), plain[0].read_text().splitlines(), strict=True):
        assert json.loads(one)["loss"] == pytest.approx(json.loads(other)["loss"], rel=1e-4)


@pytest.mark.parametrize("around", [
    ["privacy=user_level"], ["fleet=phones_async", "fleet.buffer=1"], ["fleet=phones_partial"], ["method.top_k=0.1"],
    ["+base/clustering@method.clustering=otdd", "method.clustering.clusters=2"],
])  # fmt: skip
def test_fednova_goes_with_what_stands_around_methods(around, tmp_path, capsys):
    assert main([*arrange_fednova(tmp_path), *around]) == 0, capsys.readouterr().err
    rows = rows_of(tmp_path)
    seen = [row for row in rows if row["participants"]]
    if around == ["method.top_k=0.1"]:  # values and places of a tenth, and the steps
        assert all(0 < row["bytes_up"] < 0.21 * row["bytes_down"] for row in seen)
    else:
        assert all(row["bytes_up"] > row["bytes_down"] for row in seen)  # the steps
    if around[0].startswith("privacy"):
        assert all(len(row["update_norms"]) == len(row["participants"]) for row in rows)


def test_declared_method_sets_partition_valid_default(tmp_path, capsys):
    own = arrange(tmp_path)
    assert main(own) == 0, capsys.readouterr().err
    assert main([*own, "partition.valid=0.2"]) == 0, capsys.readouterr().err  # what null stands for: the same run
    assert len(list((tmp_path / "out").glob("femnist/kept/*"))) == 1


BAD = [
    (["+method.oftn=3"], "method.oftn: unknown setting (did you mean 'often'?)"),
    (["~method.at"], "method.at: required, but not set"),
    (["method.personalization=soap"], "kind: unknown personalization 'soap' (did you mean 'soup'?)"),
    (["method.at=word"], "method.at: expected a number, got 'word'"),
    (["+method.head_epochs=2"], "not a setting of method.algorithm=kept (algorithms with this setting: fedrep)"),
    (["method=fedavg", "+method.at=1"], "method.at: not a setting of method.algorithm=fedavg (algorithms with "),
    (["method=local", "privacy=user_level"], "the clients send nothing, so there is nothing to protect"),
    (["method.personalization=cossim", "privacy=user_level"], "personalized models to other clients without clipping"),
]


def test_declared_method_rejects_unsupported_settings(tmp_path, capsys):
    own = arrange(tmp_path)
    for overrides, said in BAD:
        assert main(replaced(own, *overrides)) == 2, overrides
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
