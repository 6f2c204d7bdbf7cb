"""What a command line asks for: presets, keys given twice, names by pattern, lists of values."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from knot_runner.cli import launch
from knot_runner.cli import main as cli
from knot_runner.cli.main import main
from knot_runner.composing.commands import Command, compose_all
from knot_runner.composing.overrides import MAX_JOBS, parse_overrides, values_of
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.tiny import TINY


def refusal(*arguments):
    with pytest.raises(UserError) as caught:
        compose_all(list(arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_compose_all_composes_one_grid_per_preset():
    flags = ["--multirun"]
    words = ["experiment='federated/fedprox',federated/fleet_femnist", "seed=0,1"]
    jobs, commands = compose_all([*flags, *words])
    assert [command.preset for command in commands] == ["federated/fedprox", "federated/fleet_femnist"]
    for command in commands:
        alone = compose_all([f"experiment={command.preset}", "seed=0,1"])[0]
        assert [job.run_id for job in command.jobs] == [job.run_id for job in alone] and command.sweep
        assert command.arguments == [*flags, f"experiment={command.preset}", "seed=0,1"]
    assert len({len(command.jobs) for command in commands}) == 2
    assert jobs == [job for command in commands for job in command.jobs]


@pytest.mark.parametrize(("arguments", "sweep"), [
    ([], False), (["seed=1"], False), (["-m", "seed=1"], True), (["--multirun"], True),
    (["hydra/launcher=joblib"], True), (["seed=0,1"], True),
    (["-m", "experiment=federated/fedprox", "arm=fedavg", "seed=0"], True),
])  # fmt: skip
def test_compose_all_detects_requested_sweeps(arguments, sweep):
    (command,) = compose_all(arguments)[1]
    assert command.sweep == sweep


def commands(*presets):
    settings = SimpleNamespace(report={"kind": "methods"}, plugins=[], paths=SimpleNamespace(out="nowhere"))
    return [Command(name, [f"experiment={name}"], [SimpleNamespace(settings=settings)], None, True) for name in presets]


@pytest.mark.parametrize(
    ("ends", "worst"), [((0, 0), 0), ((0, 2), 2), ((2, 1), 1), ((1, 2), 1), ((1, 0), 1), ((UserError("x"), 0), 2)]
)
def test_main_runs_presets_in_order_returning_worst_code(ends, worst, monkeypatch, capsys):
    begun, shown = [], []

    def sweep(command, *_):
        begun.append(command.preset)
        end = ends[len(begun) - 1]
        if isinstance(end, Exception):
            raise end
        return end

    made = commands("a", "b")
    monkeypatch.setattr(launch, "compose_all", lambda _: ([job for command in made for job in command.jobs], made))
    monkeypatch.setattr(launch, "_look_for_stale", lambda *_: None)
    monkeypatch.setattr(launch, "_sweep", sweep)
    monkeypatch.setattr("knot_runner.cli.show.show", lambda preset, keep: shown.append((preset.name, preset.command)))
    assert cli.main(["experiment=a,b"]) == worst
    assert begun == ["a", "b"]
    assert shown == [(n, f"knot-runner experiment={n}") for n, end in zip("ab", ends, strict=True) if end == 0]
    assert ("knot-runner: experiment=a: x" in capsys.readouterr().err) == isinstance(ends[0], Exception)


def test_compose_all_uses_last_value_of_repeated_key():
    jobs, _ = compose_all(["task=femnist", "seed=0,1", "training.lr=1", "seed=7", "training.lr=0.1,0.2"])
    assert [job.settings.seed for job in jobs] == [7, 7]
    assert [job.label for job in jobs] == ["training.lr=0.1", "training.lr=0.2"]
    assert not any("seed=0" in override for job in jobs for override in job.overrides)
    (job,), _ = compose_all(["+tracker.options.port=1", "tracker.options.port=2"])
    assert job.settings.tracker.options == {"port": 2}


def test_compose_all_merges_mappings_and_readds_deleted_keys():
    (job,) = compose_all(["task=erc", "training.distill={epochs:1}", "training.distill={lr:0.5}"])[0]
    assert (job.settings.training.distill.epochs, job.settings.training.distill.lr) == (1, 0.5)
    (job,) = compose_all(["task=erc", "~model.dropout", "+model.dropout=0.7"])[0]
    assert job.settings.model.dropout == 0.7


def test_values_of_refuses_more_than_max_jobs():
    (override,) = parse_overrides([f"seed=range(0,{MAX_JOBS})"])
    assert len(values_of(override, None)) == MAX_JOBS
    (override,) = parse_overrides([f"seed=range(0,{MAX_JOBS + 1})"])
    with refuses():
        values_of(override, None)


def test_interpolations_that_do_not_grow_are_resolved(monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "there")
    (job,), _ = compose_all(["paths.output_dir=${oc.env:SOMEWHERE}/${task.name}", "paths.data_dir=${paths.output_dir}"])
    assert (job.settings.paths.output_dir, job.settings.paths.data_dir) == ("there/sa", "there/sa")


@pytest.mark.parametrize("path", ["/tmp/ü ö", "日本語", "~/ü", "a/ñ-1.5_x"])
def test_compose_all_reads_non_ascii_paths_without_quotes(path):
    (job,), _ = compose_all([f"paths.output_dir={path}"])
    (quoted,), _ = compose_all([f"paths.output_dir='{path}'"])
    assert job.settings.paths.output_dir == quoted.settings.paths.output_dir == str(Path(path).expanduser())
    assert job.run_id == quoted.run_id


def run(tmp_path, *overrides):
    assert main([*TINY, f"paths.output_dir={tmp_path}", *overrides]) == 0
    (path,) = sorted(tmp_path.glob("*/*/*/result.json"), key=lambda p: p.stat().st_mtime)[-1:]
    return json.loads(path.read_text()), path.parent


def test_run_writes_records_and_prints_table(offline, tmp_path, capsys):
    result, folder = run(tmp_path, "task=erc")
    said = capsys.readouterr().out
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "rounds.jsonl", "result.json", "predictions.safetensors", "vectors.safetensors",
        "model.safetensors",
    }  # fmt: skip
    assert (result["task"], result["method"], result["status"], result["seed"]) == ("erc", "sinkhorn_e", "done", 0)
    tested = {name for name, data in result["datasets"].items() if data["role"] != "transfer"}
    for measure in ("f1", "accuracy", "sd"):
        assert set(result["metrics"][measure]) == tested | {"ALL"}
        assert 0 <= result["metrics"][measure]["ALL"] < 4
    for name in tested:
        counted = result["label_counts"]["parties"][name]
        assert {split: sum(n) for split, n in counted.items()} == {s: result["datasets"][name][s] for s in counted}
    assert set(result["bias"]) == tested and all(abs(sum(b) - 1) < 1e-6 for b in result["bias"].values())
    assert str(folder) in said.replace("\n", "") and "ALL" in said


@pytest.mark.real_data
def test_run_trains_on_real_files(data_root, tmp_path):
    real = ["task.source=local", "task.missing=skip", f"paths.data_dir={data_root}", "model.vocab=bert_tiny"]
    result, _ = run(tmp_path, "task=erc", *real)
    assert result["source"] == "local" and result["status"] == "done"
    assert any("IEMOCAP: left out" in note for note in result["notes"])
    assert result["rows"]["meld/train_sent_emo.csv"] == 9989


def test_store_shares_local_and_pretrain_stages_between_methods(knot_run, tmp_path):
    shutil.copytree(knot_run.folder.parents[2], tmp_path, dirs_exist_ok=True)
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
