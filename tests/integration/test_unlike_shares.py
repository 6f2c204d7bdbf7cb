"""Methods that hold out different shares of the training examples are not compared unless a preset says why."""

import json

import pytest

from knot_runner.cli.main import main

PRESET = """\
# @package _global_
defaults:
  - override /task: mnist
  - override /partition: small
task: {max_examples: 60, shape: [1, 8, 8]}
partition: {num_clients: 3}
model: {hidden: [8]}
training: {rounds: 1, clients_per_round: 3, local_epochs: 1, batch_size: 4, lr: 0.05, small_clients: allow}
hardware: {num_workers: 1}
sweep: {method: "fedavg,OTHER", seed: "0,1,2"}
report:
  kind: grid
  metrics: [accuracy]
  unlike: REASON
  claims:
    - text: it is worse than FedAvg
      source: ours
      measure: accuracy
      of: {method.name: OTHER}
      against: {method.name: fedavg}
      expect: lower
"""
#: FedDF whose server never distills: FedAvg on what partition.transfer leaves to its clients.
NEVER = "defaults:\n  - feddf\n  - _self_\nname: never\nserver_distillation: {after: 99}\n"


def preset(folder, other="never", reason="null"):
    files = {
        "experiment/own.yaml": PRESET.replace("OTHER", other).replace("REASON", reason),
        "method/never.yaml": NEVER,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    return [f"--config-dir={folder}", f"paths.output_dir={folder / 'out'}"]


def shown(capsys):
    return " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(("other", "key"), [
    ("never", "partition.transfer"), pytest.param("soup", "partition.valid", marks=pytest.mark.thorough),
], ids=["transfer", "valid"])  # fmt: skip
def test_shares_that_a_method_fills_in_differ(other, key, tmp_path, capsys):
    own = preset(tmp_path, other)
    assert main(["check", "experiment=own", *own, "--quick"]) == 2
    assert f"jobs of mnist hold out different shares: {key} is null and 0.2; {key}=0.2 makes them" in shown(capsys)
    assert main(["experiment=own", *own]) == 0
    assert f"Methods train on different numbers of examples of task mnist: fedavg 60; {other} 48." in shown(capsys)
    assert main(["claims", "own", *own]) == 0
    told = shown(capsys)
    assert "refused" in told and "claim 1: the runs hold out different shares of the training examples" in told
    assert main(["compare", f"paths.output_dir={tmp_path / 'out'}"]) == 0
    told = shown(capsys)
    assert key in told and f"different numbers of examples of task mnist: fedavg 60; {other} 48." in told
    assert main(["reproduce", "own", *own]) == 0 and "0 0 0 + 1 refused" in shown(capsys)


@pytest.mark.thorough
def test_claims_compare_methods_with_equal_shares(tmp_path, capsys):
    own = [*preset(tmp_path), "partition.transfer=0.2"]
    assert main(["check", "experiment=own", *own, "--quick"]) == 0
    assert main(["experiment=own", *own]) == 0 and "different numbers of examples" not in shown(capsys)
    scores = {}
    for path in (tmp_path / "out").glob("mnist/*/*/result.json"):
        result = json.loads(path.read_text())
        scores[result["method"], result["seed"]] = result["metrics"]["loss"]["ALL"]
    assert all(scores["never", seed] == pytest.approx(scores["fedavg", seed], abs=1e-9) for seed in range(3))
    assert main(["claims", "own", *own]) == 0 and "refused" not in shown(capsys)


@pytest.mark.thorough
def test_reason_of_a_preset_allows_different_shares(tmp_path, capsys):
    own = preset(tmp_path, reason="the paper gives the server its own images")
    assert main(["check", "experiment=own", *own, "--quick"]) == 0
    assert main(["experiment=own", *own]) == 0 and main(["claims", "own", *own]) == 0
    told = shown(capsys)
    assert "refused" not in told and "the paper gives the server its own images" in told
