"""Methods that hold out different shares of the training examples are not compared unless a preset says why."""

import pytest

import knot_runner as kr
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
sweep: {method: "fedavg,never", seed: "0,1"}
report:
  kind: grid
  metrics: [accuracy]
  unlike: REASON
  claims:
    - text: it is worse than FedAvg
      source: ours
      measure: accuracy
      of: {method.name: never}
      against: {method.name: fedavg}
      expect: lower
"""
#: FedDF whose server never distills: FedAvg on what partition.transfer leaves to its clients.
NEVER = "defaults:\n  - feddf\n  - _self_\nname: never\nserver_distillation: {after: 99}\n"


def preset(folder, reason="null"):
    """The overrides of the preset ``own`` with a reason for different shares, in an empty folder."""
    texts = {"experiment/own.yaml": PRESET.replace("REASON", reason), "method/never.yaml": NEVER}
    for name, text in texts.items():
        path = folder / "conf" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return f"--config-dir={folder / 'conf'}"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of the preset's runs, which all presets of this file share."""
    return tmp_path_factory.mktemp("out")


def run_all(own):
    """Run the preset's jobs in this process."""
    return [kr.run(job) for job in kr.compose(["experiment=own", *own])]


def shown(capsys):
    return " ".join("".join(capsys.readouterr()).split())


def test_different_shares_are_reported_and_not_compared(out, tmp_path, capsys):
    own = [preset(tmp_path), f"paths.output_dir={out}"]
    assert main(["check", "experiment=own", *own, "--quick"]) == 2
    key = "partition.transfer"
    assert f"jobs of task mnist hold out different shares: {key} is null and 0.2; use {key}=0.2 to" in shown(capsys)
    run_all(own)
    told = "different numbers of examples of task mnist: fedavg 60; never 48."
    assert main(["experiment=own", *own]) == 0 and f"Methods train on {told}" in shown(capsys)
    assert main(["claims", "own", *own]) == 0
    text = shown(capsys)
    assert "refused" in text and "claim 1: the runs hold out different shares of the training examples" in text
    assert main(["compare", f"paths.output_dir={out}"]) == 0
    text = shown(capsys)
    assert key in text and told in text
    assert main(["reproduce", "own", *own]) == 0 and "0 0 0 + 1 refused" in shown(capsys)


def test_reason_of_a_preset_allows_different_shares(out, tmp_path, capsys):
    own = [preset(tmp_path, reason="the paper gives the server its own images"), f"paths.output_dir={out}"]
    assert main(["check", "experiment=own", *own, "--quick"]) == 0
    run_all(own)
    assert main(["claims", "own", *own]) == 0
    text = shown(capsys)
    assert "refused" not in text and "the paper gives the server its own images" in text


def test_claims_compare_methods_with_equal_shares(tmp_path, capsys):
    own = [preset(tmp_path), "partition.transfer=0.2", f"paths.output_dir={tmp_path}"]
    assert main(["check", "experiment=own", *own, "--quick"]) == 0
    scores = {}
    for run in run_all(own):
        scores[run.result.method, run.result.seed] = run.result.metrics["loss"]["ALL"]
    assert all(scores["never", seed] == pytest.approx(scores["fedavg", seed], abs=1e-9) for seed in range(2))
    assert main(["claims", "own", *own]) == 0
    text = shown(capsys)
    assert "refused" not in text and "different numbers of examples" not in text
