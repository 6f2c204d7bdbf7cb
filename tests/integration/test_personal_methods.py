"""Runs of personal methods: rounds, costs and each client's own model."""

import json

import pytest

from tests.runs import run
from tests.tiny import TINY_IMAGES, replaced

METHODS = ["ditto", "apfl", "fedala"]
#: Of the tiny perceptron: weights and biases, and operations of a forward pass.
NUMBERS, F = 64 * 16 + 16 + 16 * 10 + 10, 2 * (64 * 16 + 16 * 10)
#: Own models that differ from the global one by more than rounding.
TAUGHT = replaced(TINY_IMAGES, "training.lr=0.2")


@pytest.mark.parametrize("method", METHODS)
def test_personal_methods_record_rounds_costs_and_own_models(tmp_path, method):
    own = ["method.server.optimizer=momentum", "method.temperature=0.5", "evaluate.matrix=end", "partition.unseen=0.2"]
    if method == "apfl":
        own.append("method.adaptive=true")
    record = run(tmp_path, *TAUGHT, f"method={method}", *own)
    rows = record.rows
    assert all(len(row["participants"]) == len(set(row["participants"])) == len(row["after"]) == 3 for row in rows)
    assert rows[-1]["train_temperature"] == 0.5
    said = {"ditto": {"own_loss"}, "apfl": {"own_loss", "alpha"}, "fedala": {"mix", "mix_passes"}}[method]
    assert said <= set(rows[-1])
    examples = json.loads((record.folder / "partition.json").read_text())["train"]
    for number, row in enumerate(rows):
        assert row["bytes_up"] == row["bytes_down"] == 3 * NUMBERS * 4  # one model a participant
        epochs = [2.0 if method == "fedala" else 4.0] * 3
        if method == "fedala":
            earlier = {client for before in rows[:number] for client in before["participants"]}
            epochs = [2.8 if client in earlier else 2.0 for client in row["participants"]]
        work = [each * sum(examples[client]) for each, client in zip(epochs, row["participants"], strict=True)]
        assert row["client_flops"] == pytest.approx(3 * F * sum(work), rel=1e-6)
    found = set(record.result["metrics"])
    assert {"id_accuracy", "ood_accuracy", "worst_decile", "clients_hurt", "unseen_accuracy"} <= found
    assert record.result["unseen"] == 1
    taken = {client for row in rows for client in row["participants"]}
    kept = record.tensors()
    names = {name.rpartition("/")[2] for name in kept if "/" not in name}
    assert {name for name in kept if name.startswith("client/")} == {f"client/{k}/{n}" for k in taken for n in names}


def test_personalization_begins_with_own_models(tmp_path):
    """Fine-tuning at the learning rate 1e-30 changes neither the clients' own models nor the rounds."""
    (tmp_path / "conf" / "method").mkdir(parents=True)
    chain = "defaults: [ditto, /base/personalization/finetune@personalization, _self_]\nname: after\n"
    (tmp_path / "conf" / "method" / "after.yaml").write_text(chain)
    small = [f"--config-dir={tmp_path / 'conf'}", *TAUGHT, "partition.valid=0.2", "evaluate.matrix=end"]
    still = [f"method.personalization.{word}" for word in ("lr=1e-30", "epochs=1", "checkpoints=1")]
    alone, after = (run(tmp_path, *small, *words).result for words in (["method=ditto"], ["method=after", *still]))
    for measure in ("id_accuracy", "ood_accuracy"):
        assert after["metrics"][measure] == alone["metrics"][measure]
        assert after["personalization"]["start"][measure] == alone["metrics"][measure]["ALL"]
