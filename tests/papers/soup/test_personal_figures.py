"""Figures and tables of clients' own models, of presets on a few clients."""

import json

import pytest
from safetensors.torch import load_file

from knot_runner.cli.main import main

FEW = ["partition.num_clients=6", "training.clients_per_round=3", "model.hidden=[16]", "training.rounds=2",
       "hardware.num_workers=1"]  # fmt: skip


@pytest.mark.thorough
def test_landscapes_of_two_clients_and_their_figure(tmp_path, capsys):
    small = [
        f"method.personalization.{word}" for word in ("lr=0.05", "epochs=4", "checkpoints=2", "between=[1,1]", "grid=3")
    ]
    overrides = ["experiment=soup/landscape", "task.source=embedded", "seed=0", "task.max_examples=300"]
    overrides += ["task.shape=[1,8,8]", *FEW, *small]
    assert main([*overrides, f"paths.output_dir={tmp_path}"]) == 0
    (folder,) = (path.parent for path in tmp_path.glob("*/*/*/result.json"))
    facts = json.loads((folder / "result.json").read_text())["personalization"]
    record = load_file(folder / "clients.safetensors")
    for one in facts["landscape"]:
        client = one["client"]
        assert record[f"landscape/{client}/loss"].shape == (3, 3, 2)
        own = record["loss"][:, client, client] / record["examples"][client, client]
        path = record[f"landscape/{client}/path_loss"]
        assert path[:, 0].tolist() == pytest.approx(own.tolist(), abs=1e-9)  # at every save, as the record has it
        assert record[f"landscape/{client}/segment"][[0, -1], 0].tolist() == pytest.approx(
            own[[0, -1]].tolist(), abs=1e-6
        )
    assert (tmp_path / "figures" / "soup/landscape.png").exists()
    assert "above the line between the ends by at most" in capsys.readouterr().out


@pytest.mark.thorough
def test_soup_preset_shows_trade_off_table_and_figure(tmp_path, capsys):
    overrides = [
        "experiment=soup/femnist",
        "task.source=embedded",
        "seed=0,1",
        "task.max_examples=300",
        "task.shape=[1,8,8]",
    ]
    overrides += FEW
    overrides += ["arm=finetune,soup", "method.personalization.epochs=1", "method.personalization.checkpoints=1"]
    assert main([*overrides, f"paths.output_dir={tmp_path}"]) == 0
    capsys.readouterr()
    assert main(["table", "soup/femnist", *overrides[1:], f"paths.output_dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "ID at OOD -1" in shown and "what the curve of (OOD, ID) dominates" in " ".join(shown.split())
    assert main(["plot", "soup/femnist", *overrides[1:], f"paths.output_dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "soup: ends at ID" in shown and (tmp_path / "figures" / "soup/femnist.png").exists()
    rows = (tmp_path / "figures" / "soup/femnist.csv").read_text().splitlines()
    assert rows[0] == "method,seed,step,alpha,ood_accuracy,id_accuracy" and len(rows) == 1 + 2 * (2 + 11)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/soup/*/result.json")]
    area = sum(result["personalization"]["area"] for result in results) / 2
    (table,) = (tmp_path / "tables").glob("soup/femnist.csv")
    assert f"{area:.4f}"[1:] in table.read_text()
