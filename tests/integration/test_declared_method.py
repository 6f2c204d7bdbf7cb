"""What a federated method of one's own declares of itself: it then goes where the package's methods go."""

import json
import sys

import pytest

from knot_runner.cli.main import main
from tests.plugin_tables import tables_restored  # noqa: F401
from tests.tiny import TINY_IMAGES, replaced

METHOD = """
from dataclasses import dataclass

import knot_runner as kr
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import kept_models


@dataclass(kw_only=True)
class KeptSettings(kr.AveragingSettings):
    at: float
    often: float = 2
    PROMISES


def fold(hp, state, federation, round, requests, trained):
    after, row = averaging.fold(hp, state, federation, round, requests, trained)
    return {**after, **kept_models(trained)}, {**row, "at": hp.at, "often": hp.often}


kr.METHODS["kept"] = kr.Method(averaging.init, averaging.plan, fold, averaging.deployed, settings=KeptSettings)
"""
DECLARED = 'needs_rounds = not_private = ""; keeps = "model"; selects = True'
YAML = """
defaults:
  - /base/averaging@_here_
  - _self_
name: kept
algorithm: kept
at: 1
"""


@pytest.fixture(autouse=True)
def tables_as_they_were(tables_restored):  # noqa: F811
    yield
    for name in ("kept_method", "silent_method"):
        sys.modules.pop(name, None)


def arrange(folder, declared=DECLARED):
    name = "kept_method" if declared else "silent_method"
    (folder / f"{name}.py").write_text(METHOD.replace("PROMISES", declared))
    (folder / "conf" / "method").mkdir(parents=True)
    (folder / "conf" / "method" / "kept.yaml").write_text(YAML)
    own = [
        f"--config-dir={folder / 'conf'}",
        f"plugins=['{folder / f'{name}.py'}']",
        f"paths.output_dir={folder / 'out'}",
    ]
    return [*replaced(TINY_IMAGES, "method=kept"), *own]


def rows_of(folder):
    (log,) = (folder / "out").glob("femnist/kept/*/rounds.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_declared_method_runs_asynchronously_and_converts_options(tmp_path, capsys):
    own = [*arrange(tmp_path), "fleet=phones_async", "fleet.buffer=1"]
    assert main(own) == 0, capsys.readouterr().err
    rows = rows_of(tmp_path)
    assert rows[0]["at"] == 1.0 and isinstance(rows[0]["at"], float) and isinstance(rows[0]["often"], float)
    assert any(row["staleness"] > 0 for row in rows)


def test_declared_method_trains_with_clipping(tmp_path, capsys):
    assert main([*arrange(tmp_path), "privacy=user_level", "method.aggregation=uniform"]) == 0, capsys.readouterr().err


def test_method_that_does_not_clip_is_refused(tmp_path, capsys):
    """Registered like FedAvg, it declares that privacy covers its messages, but takes the plain mean of the models."""
    own = [*arrange(tmp_path), "privacy=user_level", "method.aggregation=uniform"]
    plugin = tmp_path / "kept_method.py"
    unclipped = plugin.read_text().replace(
        "    after, row =", "    federation = replace(federation, privacy=None)\n    after, row ="
    )
    plugin.write_text("from dataclasses import replace\n" + unclipped)
    assert main(own) == 2
    error = capsys.readouterr().err
    assert "privacy: method.algorithm=kept clipped 0 of 1 message of a client in a round, so epsilon would be" in error
    assert not list((tmp_path / "out").glob("femnist/kept/*/result.json"))


def test_declared_method_sets_partition_valid_default(tmp_path, capsys):
    own = arrange(tmp_path)
    assert main(own) == 0, capsys.readouterr().err
    assert main([*own, "partition.valid=0.2"]) == 0, capsys.readouterr().err  # what null stands for: the same run
    assert len(list((tmp_path / "out").glob("femnist/kept/*"))) == 1


BAD = [
    (["+method.oftn=3"], "method.oftn: there is no such setting (did you mean 'often'?)"),
    (["~method.at"], "method.at: is not set"),
    (["method.personalization=soap"], "method.personalization.kind: no personalization 'soap' (did you mean 'soup'?)"),
    (["method.at=word"], "method.at: expected a number, got 'word'"),
    (["+method.head_epochs=2"], "method.head_epochs: not a setting of method.algorithm=kept, but of fedrep"),
    (["method=fedavg", "+method.at=1"], "method.at: there is no such setting"),
    (
        ["method=local", "privacy=user_level"],
        "Use one of fedavg, fedprox, scaffold",
    ),
]


def test_declared_method_rejects_unsupported_settings(tmp_path, capsys):
    own = arrange(tmp_path)
    for overrides, said in BAD:
        assert main(replaced(own, *overrides)) == 2, overrides
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error


def test_undeclared_method_needs_rounds(tmp_path, capsys):
    """What the class does not state is not inherited from a class that states it."""
    own = arrange(tmp_path, declared="")
    plugin = tmp_path / "silent_method.py"
    plugin.write_text(
        "from knot_runner.config.settings import FedAvgSettings\n"
        + plugin.read_text().replace("kr.AveragingSettings", "FedAvgSettings")
    )
    assert main([*own, "fleet=phones_async"]) == 2
    assert "method=kept do not go together: with fleet.mode=async there are no rounds" in capsys.readouterr().err
    assert main([*own, "--cfg=job"]) == 0
