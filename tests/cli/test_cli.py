"""The command as a user types it: what it prints, what it writes, how it refuses."""

import json
import subprocess
import sys

import pytest

from knot_runner.cli.main import main
from tests.tiny import TINY


def run(tmp_path, *overrides):
    assert main([*TINY, f"paths.output_dir={tmp_path}", *overrides]) == 0
    (path,) = sorted(tmp_path.glob("*/*/*/result.json"), key=lambda p: p.stat().st_mtime)[-1:]
    return json.loads(path.read_text()), path.parent


@pytest.mark.parametrize("task", ["erc", *(pytest.param(task, marks=pytest.mark.thorough) for task in ("sa", "nli"))])
def test_run_writes_records_and_prints_table(task, offline, tmp_path, capsys):
    result, folder = run(tmp_path, f"task={task}")
    said = capsys.readouterr().out
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "rounds.jsonl", "result.json", "predictions.safetensors", "vectors.safetensors",
        "model.safetensors",
    }  # fmt: skip
    assert (result["task"], result["method"], result["status"], result["seed"]) == (task, "sinkhorn_e", "done", 0)
    tested = {name for name, data in result["datasets"].items() if data["role"] != "transfer"}
    for measure in ("f1", "accuracy", "sd"):
        assert set(result["metrics"][measure]) == tested | {"ALL"}
        assert 0 <= result["metrics"][measure]["ALL"] < 4
    for name in tested:
        counted = result["label_counts"]["parties"][name]
        assert {split: sum(n) for split, n in counted.items()} == {s: result["datasets"][name][s] for s in counted}
    assert set(result["bias"]) == tested and all(abs(sum(b) - 1) < 1e-6 for b in result["bias"].values())
    assert str(folder) in said.replace("\n", "") and "ALL" in said


@pytest.mark.thorough
@pytest.mark.real_data
@pytest.mark.parametrize("task", ["sa", "erc"])
def test_run_trains_on_real_files(task, data_root, tmp_path):
    real = ["task.source=local", "task.missing=skip", f"paths.data_dir={data_root}", "model.vocab=bert_tiny"]
    result, _ = run(tmp_path, f"task={task}", *real)
    assert result["source"] == "local" and result["status"] == "done"
    assert any("IEMOCAP: left out" in note for note in result["notes"]) == (task == "erc")
    assert result["rows"] and result["rows"].get("meld/train_sent_emo.csv", 9989) == 9989


@pytest.mark.thorough
def test_store_shares_local_and_pretrain_stages_between_methods(tmp_path):
    run(tmp_path)
    count = {stage: len(list((tmp_path / "artifacts" / stage).iterdir())) for stage in ("local", "pretrain")}
    run(tmp_path, "method=entropy_a")
    assert {stage: len(list((tmp_path / "artifacts" / stage).iterdir())) for stage in count} == count
    assert len(list((tmp_path / "artifacts" / "distill").iterdir())) == 2


def test_run_records_that_it_diverged(tmp_path, capsys):
    assert main([*TINY, f"paths.output_dir={tmp_path}", "training.local.lr=1e30"]) == 1
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "diverged" and "not finite in epoch 1" in result["notes"][-1]


def test_help_and_ls_do_not_import_torch():
    code = "import sys; from knot_runner.cli.main import main\n"
    for arguments in (["--help"], ["ls"], ["check", "--quick", "experiment=federated/fedmd_femnist"]):
        code += f"main({arguments!r}); print('torch:', 'torch' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("torch:")] == ["torch: False"] * 3
