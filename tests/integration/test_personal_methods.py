"""Personal methods through the command line: runs, what composes with them, real kills, refusals, the preset."""

import json

import pytest
from safetensors.numpy import load_file

from knot_runner.cli.main import main
from tests.golden.messages import refused
from tests.integration.test_federated import folder_of, records
from tests.tiny import TINY_IMAGES, replaced

METHODS = ["ditto", "apfl", "fedala"]
#: Settings of methods in a YAML of one's own.
OWN = {"apfl": "apfl: {alpha: 0.5}", "fedsoup": "fedsoup: {start: 0.0}"}
#: Of the tiny perceptron: weights and biases, and operations of a forward pass.
NUMBERS, F = 64 * 16 + 16 + 16 * 10 + 10, 2 * (64 * 16 + 16 * 10)
#: Own models that differ from the global one by more than rounding.
TAUGHT = replaced(TINY_IMAGES, "training.lr=0.2")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_and_the_models_that_it_leaves(tmp_path, method, capsys):
    own = ["method.server.optimiser=momentum", "method.temperature=0.5", "evaluate.matrix=end", "partition.unseen=0.2"]
    if method == "apfl":
        own.append("method.apfl.adaptive=true")
    assert main([*TAUGHT, f"method={method}", *own, f"paths.out={tmp_path}"]) == 0, capsys.readouterr().err
    result, rows, _ = records(tmp_path)
    assert all(len(row["participants"]) == len(set(row["participants"])) == len(row["after"]) == 3 for row in rows)
    assert rows[-1]["train_temperature"] == 0.5
    said = {"ditto": {"own_loss"}, "apfl": {"own_loss", "alpha"}, "fedala": {"mix", "mix_passes"}}[method]
    assert said <= set(rows[-1])
    examples = json.loads((folder_of(tmp_path) / "partition.json").read_text())["train"]
    for number, row in enumerate(rows):
        assert row["bytes_up"] == row["bytes_down"] == 3 * NUMBERS * 4  # one model a participant
        epochs = [2.0 if method == "fedala" else 4.0] * 3
        if method == "fedala":
            earlier = {client for before in rows[:number] for client in before["participants"]}
            epochs = [2.8 if client in earlier else 2.0 for client in row["participants"]]
        work = [each * sum(examples[client]) for each, client in zip(epochs, row["participants"], strict=True)]
        assert row["client_flops"] == pytest.approx(3 * F * sum(work), rel=1e-6)
    found = result["metrics"]
    assert {"id_accuracy", "ood_accuracy", "worst_decile", "clients_hurt", "unseen_accuracy"} <= set(found)
    assert result["unseen"] == 1
    taken = {client for row in rows for client in row["participants"]}
    kept = load_file(folder_of(tmp_path) / "model.safetensors")
    names = {name.rpartition("/")[2] for name in kept if "/" not in name}
    assert {name for name in kept if name.startswith("client/")} == {f"client/{k}/{n}" for k in taken for n in names}


OF_FEDDF = {"ditto": ["+method.ditto.lam=0.5"], "fedsoup": ["+method.fedsoup.start=0.3", "partition.valid=0.2"]}


@pytest.mark.parametrize("algorithm", OF_FEDDF)
def test_a_server_distils_beside_own_models(tmp_path, algorithm, capsys):
    words = ["method=feddf", f"method.algorithm={algorithm}", *OF_FEDDF[algorithm], "method.distil.epochs=1"]
    words += ["partition.transfer=0.2", "fleet=phones_partial", "evaluate.matrix=end", f"paths.out={tmp_path}"]
    assert main([*TAUGHT, *words]) == 0, capsys.readouterr().err
    result, rows, _ = records(tmp_path)
    assert all(row["distil_steps"] > 0 and row["server_flops"] > 0 for row in rows)
    assert result["distilled"] and {"id_accuracy", "ood_accuracy"} <= set(result["metrics"])


def test_fedsoup_mixes_in_the_later_rounds(tmp_path, capsys):
    own = ["method=fedsoup", "method.fedsoup.start=0.5", "evaluate.matrix=end", "method.temperature=0.5"]
    assert main([*TAUGHT, *own, f"paths.out={tmp_path}"]) == 0, capsys.readouterr().err
    result, rows, _ = records(tmp_path)
    assert ["pool_size" in row for row in rows] == [False, True, True]  # round 2 of 3 is beyond a half
    assert any("partition.valid: " in note and "held out" in note for note in result["notes"])
    assert {"id_accuracy", "ood_accuracy"} <= set(result["metrics"])
    kept = load_file(folder_of(tmp_path) / "model.safetensors")
    taken = {str(client) for row in rows for client in row["participants"]}
    assert {name.split("/")[1] for name in kept if name.startswith("client/")} == taken
    assert 0 <= rows[1]["pool_size"] <= 1 and 0 <= rows[2]["pool_size"] <= 2


@pytest.mark.thorough
def test_personalisation_begins_with_own_models(tmp_path, capsys):
    """Fine-tuning by epochs at rate 1e-30 leaves what the clients had; the rounds are those of the run without."""
    (tmp_path / "conf" / "method").mkdir(parents=True)
    chain = "defaults: [ditto, /base/personalisation/finetune@personalisation, _self_]\nname: after\n"
    (tmp_path / "conf" / "method" / "after.yaml").write_text(chain)
    small = [f"--config-dir={tmp_path / 'conf'}", *TAUGHT, "partition.valid=0.2", "evaluate.matrix=end"]
    still = ["method.personalisation.lr=1e-30", "method.personalisation.epochs=1", "method.personalisation.saves=1"]
    runs = {"ditto": ["method=ditto"], "after": ["method=after", *still]}
    for name, words in runs.items():
        assert main([*small, *words, f"paths.out={tmp_path / name}"]) == 0, capsys.readouterr().err
    alone, _, _ = records(tmp_path / "ditto")
    after, _, _ = records(tmp_path / "after")
    for measure in ("id_accuracy", "ood_accuracy"):
        assert after["metrics"][measure] == alone["metrics"][measure]
        assert after["personalisation"]["start"][measure] == alone["metrics"][measure]["ALL"]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["apfl", "fedsoup"])
def test_clusters_of_clients(tmp_path, method, capsys):
    (tmp_path / "conf" / "method").mkdir(parents=True)
    chain = f"defaults: [/base/clustered@_here_, _self_]\nname: c\nalgorithm: {method}\n{OWN[method]}\n"
    (tmp_path / "conf" / "method" / "c.yaml").write_text(chain)
    small = ["method.clustering.clusters=2", "method.clustering.otdd.fedwad.iterations=2", f"paths.out={tmp_path}"]
    assert main([f"--config-dir={tmp_path / 'conf'}", *TAUGHT, "method=c", *small]) == 0, capsys.readouterr().err
    result, rows, _ = records(tmp_path)
    assert result["clusters"]["count"] == 2 and len(rows) == 3


BAD = [
    ["method=ditto", "method.ditto.lam=-1"],
    ["method=ditto", "method.ditto.lr=0"], ["method=ditto", "method.ditto=null"], ["method=ditto", "method.mu=1"],
    ["method=apfl", "method.apfl.alpha=1.5"], ["method=apfl", "method.apfl.alpha=-0.5"],
    ["method=fedala", "method.fedala.layers=3"], ["method=fedala", "method.fedala.layers=0"],
    ["method=fedala", "method.fedala.share=0"], ["method=fedala", "method.fedala.deployed=both"],
    ["method=fedsoup", "method.fedsoup.start=1"], ["method=fedavg", "+method.ditto={lam: 1.0}"],
    ["method=fedala", "method.algorithm=apfl"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line(arguments, tmp_path, capsys):
    refused(capsys, *TINY_IMAGES, *arguments, f"paths.out={tmp_path}")
