"""The command as a user types it: what it prints, what it writes, how it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from knot_runner.cli.main import main
from tests.golden.messages import refused
from tests.tiny import TINY

BAD = [
    ["task.temprature=3"], ["+method.temprature=3"], ["method.normalize=true"], ["methd=sinkhorn_e"],
    ["method=sinkhron_e"], ["task=ercc"], ["experiment=knot_table9"], ["method.weighting=Z"],
    ["method.loss.name=hinge"], ["training.local.epochs=-5"], ["training.local.lr=nan"], ["seed=x"],
    ["task.labels.coordinates=[[0],[1]]"], ["task.labels.coordinates=[[0],[1],[2],[3],[4,5]]"], ["hardware=cuda"],
    ["hardware.device=gpu"], ["task.source=local", "paths.data=null"], ["task.source=local", "paths.data=/nowhere"],
    ["model.vocab=/nowhere/vocab.txt"], ["model.weights=/nowhere"], ["method.loss.epsilon=1e-9"],
    ["task=erc", "method.loss.solver=line"], ["+model.per_party.Nobody.layers=1"],
    ["model.per_party={Cell:{layers:1}}"], ["plugins=[no_such_module]"], ["a=[1"], ["tabel", "knot/table2"],
    ["table", "knot_tabel2"], ["--frobnicate"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # one of them is that there is no GPU
    given = {argument.split("=")[0] for argument in arguments}
    quick = [] if arguments[0] in ("tabel", "table") else [*TINY, f"paths.out={tmp_path / 'out'}"]
    refused(capsys, *arguments, *(word for word in quick if word.split("=")[0] not in given))
    suffixes = (".json", ".jsonl", ".yaml", ".tmp", ".safetensors")
    assert not [path for path in tmp_path.rglob("*") if path.suffix in suffixes and "artefacts" not in path.parts]


FAULTY = [
    ("text,mood\na,low\n", "shop.csv: has no column 'body'"),
    ("body,mood\na,low\nb,sideways\n", "'sideways'"),
    ("body,mood\na,low\nb\n", "shop.csv"),
    ("", "shop.csv"),
]


@pytest.mark.parametrize(("content", "said"), FAULTY, ids=["no column", "unknown label", "cut row", "empty"])
def test_a_faulty_file_is_one_line_that_names_it(content, said, tmp_path, capsys):
    good = "body,mood\n" + "".join(f"word {i},{'low' if i % 2 else 'high'}\n" for i in range(60))
    for name in ("post", "street"):
        (tmp_path / f"{name}.csv").write_text(good)
    (tmp_path / "shop.csv").write_text(content)
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mood.yaml").write_text(MOOD)
    out = tmp_path / "out"
    arguments = [*TINY, f"--config-dir={tmp_path}", "task=mood", f"paths.data={tmp_path}", f"paths.out={out}"]
    assert main(arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert said in line and "Traceback" not in line
    assert not list(out.glob("mood/*/*/*"))


def run(tmp_path, *overrides):
    """One tiny run through the command; its folder's result."""
    assert main([*TINY, f"paths.out={tmp_path}", *overrides]) == 0
    (path,) = sorted(tmp_path.glob("*/*/*/result.json"), key=lambda p: p.stat().st_mtime)[-1:]
    return json.loads(path.read_text()), path.parent


def without_times(result):
    return {key: value for key, value in result.items() if key not in ("seconds", "digest")}


@pytest.mark.parametrize("task", ["erc", *(pytest.param(task, marks=pytest.mark.thorough) for task in ("sa", "nli"))])
def test_a_run_writes_its_records_and_shows_a_table(task, offline, tmp_path, capsys):
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


GENRES = {"Fic": "fiction", "Gov": "government", "Slate": "slate", "Tele": "telephone", "Trv": "travel"}
HELDOUT = (
    "task.datasets.{}.local.files.heldout=[{{path: multinli/multinli_1.0_dev_matched.jsonl, where: {{genre: {}}}}}]"
)
#: Task -> which files of its data sets are read, where not all are at hand.
THERE = {
    "nli": [
        *(HELDOUT.format(name, genre) for name, genre in GENRES.items()),
        "task.datasets.ANLI.local.files.pool=[{path: anli_v1.0/R1/dev.jsonl}, {path: anli_v1.0/R2/test.jsonl}]",
    ]
}


@pytest.mark.thorough
@pytest.mark.real_data
@pytest.mark.parametrize("task", ["sa", "erc", "nli"])
def test_a_tiny_run_on_real_files(task, data_root, tmp_path):
    real = ["task.source=local", "task.missing=skip", f"paths.data={data_root}", "model.vocab=bert_tiny"]
    real += THERE.get(task, [])
    result, _ = run(tmp_path, f"task={task}", *real)
    assert result["source"] == "local" and result["status"] == "done"
    assert any("IEMOCAP: left out" in note for note in result["notes"]) == (task == "erc")
    assert result["rows"] and result["rows"].get("meld/train_sent_emo.csv", 9989) == 9989


@pytest.mark.thorough
def test_the_same_command_gives_the_same_numbers_in_another_folder(tmp_path):
    first, folder = run(tmp_path / "a")
    second, other = run(tmp_path / "b", "hardware.workers=2")
    assert without_times(first) == without_times(second)
    assert folder.name == other.name
    for name in ("predictions.safetensors", "vectors.safetensors", "model.safetensors", "rounds.jsonl"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.thorough
def test_a_finished_run_is_shown_again_not_run_again(tmp_path):
    _, folder = run(tmp_path)
    before = (folder / "result.json").stat().st_mtime_ns
    run(tmp_path)
    assert (folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.thorough
def test_the_methods_of_a_table_share_teachers_and_soft_labels(tmp_path):
    run(tmp_path)
    count = {stage: len(list((tmp_path / "artefacts" / stage).iterdir())) for stage in ("local", "pretrain")}
    run(tmp_path, "method=entropy_a")
    assert {stage: len(list((tmp_path / "artefacts" / stage).iterdir())) for stage in count} == count
    assert len(list((tmp_path / "artefacts" / "distil").iterdir())) == 2


@pytest.mark.thorough
def test_a_sweep_goes_on_past_a_failing_job_and_says_so(tmp_path, capsys):
    arguments = [*TINY, f"paths.out={tmp_path}", "method=entropy_a", "method.weighting=A,Z", "-m"]
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert "1 done, 1 failed" in errors and "no weighting 'Z'" in errors


def test_a_diverging_run_is_recorded_as_such(tmp_path, capsys):
    assert main([*TINY, f"paths.out={tmp_path}", "training.local.lr=1e30"]) == 1
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "diverged" and "not finite in epoch 1" in result["notes"][-1]


def test_help_and_ls_do_not_import_torch():
    code = "import sys; from knot_runner.cli.main import main\n"
    for arguments in (["--help"], ["ls"], ["check", "--quick", "experiment=knot/table2"]):
        code += f"main({arguments!r}); print('torch:', 'torch' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("torch:")] == ["torch: False"] * 3


def test_hydras_own_flags_show_and_run_nothing(tmp_path, capsys):
    assert main(["--cfg", "job", f"paths.out={tmp_path}/x"]) == 0
    assert "method:" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


@pytest.mark.thorough
def test_a_loss_a_label_space_and_a_data_set_from_outside_the_package(tmp_path, capsys):
    """One YAML with a data set and a label space of its own, one function: no change to the package."""
    outside = tmp_path / "mine"
    (outside / "task").mkdir(parents=True)
    rows = [(f"{word} {place} {i}", label) for i in range(60) for word, label in (("up", "high"), ("down", "low"))
            for place in ("here", "there")]  # fmt: skip
    for name in ("shop", "post", "street"):
        lines = ["body,mood", *(f"{name} {text},{label}" for text, label in rows)]
        (outside / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (outside / "task" / "mood.yaml").write_text(MOOD)
    (outside / "squared.py").write_text(SQUARED)
    folder = tmp_path / "out"
    arguments = [
        *TINY, f"--config-dir={outside}", "task=mood", "task.limit=null", f"paths.data={outside}",
        f"paths.out={folder}",
        f"plugins=['{outside / 'squared.py'}']", "method=entropy_a", "method.loss.name=squared", "~method.loss.form",
        "+method.loss.power=2", "training.local.epochs=20", "training.pretrain.epochs=20",
        "training.local.lr=3e-3", "training.pretrain.lr=3e-3",
    ]  # fmt: skip
    assert main(arguments) == 0, capsys.readouterr().err
    (path,) = folder.glob("mood/*/*/result.json")
    result = json.loads(path.read_text())
    assert result["labels"]["names"] == ["low", "high"] and result["metrics"]["accuracy"]["ALL"] > 0.5


MOOD = """\
name: mood
kind: sentiment
source: local
max_length: 16
context: 0
missing: error
limit: null
score: f1
split: {valid: 0.2, test: 0.2, seed: 1}
labels: {names: [low, high], coordinates: [[0.0], [1.0]], support: semantic}
datasets:
  Shop:
    role: local
    labels: &labels {low: low, high: high}
    local: {format: csv, files: {pool: [{path: shop.csv}]}, columns: &columns {text: body, label: mood}}
  Street:
    role: global
    labels: *labels
    local: {format: csv, files: {pool: [{path: street.csv}]}, columns: *columns}
  Post:
    role: transfer
    labels: *labels
    local: {format: csv, files: {pool: [{path: post.csv}]}, columns: *columns}
"""
SQUARED = '''\
"""|| p - q ||^power, a loss of one's own."""
from dataclasses import dataclass

from knot_runner.methods.losses import LOSSES, Loss


@dataclass
class Squared:
    name: str
    power: int


def squared(options, log_p, q, points):
    return (log_p.exp() - q).abs().pow(options.power).sum(-1)


LOSSES["squared"] = Loss(Squared, squared)
'''


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["--help", "ls"])
def test_output_that_nobody_reads_on_is_no_error(verb, tmp_path):
    """As in ``knot-runner ls | head -1``, with a reader that is gone before anything is written."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "knot_runner", verb]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    os.close(write)
    assert done.stderr == b""
