"""``knot-runner bound`` and ``method.bound`` on tiny runs: what they record, say and refuse; the figure; the limit."""

import json
import math
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.engine.store import Store
from knot_runner.papers.knot import bound
from knot_runner.papers.knot.bound import example_keys, first_rows
from knot_runner.papers.knot.bound_report import bound_table
from knot_runner.records import sealed_problem
from tests import runs
from tests.contents import read_content
from tests.golden.messages import check
from tests.tiny import TINY_PARTIES, replaced

#: As the theorem has it: weights that sum to 1, no regularization (one-hot labels are leaves of a tree).
BOUNDED = replaced(TINY_PARTIES, "method=sinkhorn_a", "method.normalize=true", "training.distill.epochs=2")


def run(out: Path, words: list[str]) -> Path:
    """The run's folder."""
    return runs.run(out, *words).folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run that was asked for its bound, and its twin that was not, over the same stages."""
    out = tmp_path_factory.mktemp("images")
    return run(out, [*BOUNDED, "method.bound=true"]), run(out, BOUNDED)


@pytest.fixture
def copied(images, tmp_path):
    """A copy of both runs' folders and stages, without the bound of the second: (the first, the second)."""
    shutil.copytree(images[0].parents[2], tmp_path / "out")
    asked, plain = (tmp_path / "out" / one.relative_to(one.parents[2]) for one in images)
    (plain / "bound.json").unlink(missing_ok=True)
    return asked, plain


def bound_of(folder):
    return json.loads((folder / "bound.json").read_text())


def refusal(capsys, *words):
    """The one line that the verb refuses with."""
    capsys.readouterr()
    assert main(["bound", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bound_command_matches_method_bound_record(images, copied, capsys):
    asked, plain = images[0], copied[1]
    one, other, record = read_content(asked), read_content(plain), bound_of(asked)
    assert not sealed_problem(record) and record["run_id"] == asked.name and "bound.json" in one["digest"]
    kept = {key: record["loss"][key] for key in ("train", "valid", "gap", "gap_less_start")}
    assert one["bound"] == {"texts": record["texts"]["train"], **kept}
    assert one["metrics"] == other["metrics"] and "bound" not in other
    for folder in (asked, plain):
        assert main(["bound", str(folder)]) == 0
        assert capsys.readouterr().out.endswith(f"{folder / 'bound.json'}\n")
    measured = bound_of(plain)
    assert not sealed_problem(measured)
    assert {**measured, "run_id": 0, "digest": 0} == {**record, "run_id": 0, "digest": 0}
    assert read_content(plain) == other  # a finished result is not edited


def test_rows_of_every_form_and_class(images):
    record = bound_of(images[0])
    wanted = [(form, "last_layer") for form in ("printed", "derived", "sharp", "sharp_empirical")]
    wanted += [("hoeffding", "held-out"), ("bernstein", "held-out")]
    assert [(row["form"], row["class"]) for row in record["rows"]] == wanted
    rows = {(row["form"], row["class"]): row for row in record["rows"]}
    assert record["classes"] == 10 and record["diameter"] == pytest.approx(math.sqrt(2)) and record["delta"] == 0.05
    for (form, name), row in rows.items():
        assert row["sum"] == pytest.approx(row["first"] + row["second"] + row["third"])
        held = form in ("derived", "hoeffding", "bernstein")
        assert row["first"] == pytest.approx(record["loss"]["valid" if held else "train"])
        assert ("C_M" in row["vacuous"]) == (row["sum"] >= record["diameter"])
        assert ("constant" in row["vacuous"]) == (row["sum"] >= record["loss"]["constant"])
        if name in record["complexity"]:
            factor = {"printed": 320, "derived": 320 * math.sqrt(2)}.get(form, 10 * math.sqrt(2))
            assert row["second"] == pytest.approx(factor * record["complexity"][name]["value"])
    assert record["complexity"]["last_layer"]["value"] <= record["complexity"]["last_layer"]["upper"]
    count = record["texts"]["train"]
    assert rows["sharp", "last_layer"]["third"] == pytest.approx(math.sqrt(2 * math.log(20) / (2 * count)))
    assert record["checkpoints"] == 3 and record["undeclared"] == {} and record["notes"] == []


def test_losses_are_those_of_the_stored_student(images):
    """The mean total variation times sqrt 2, which is W1 of one-hot labels, from the weights in the run's folder."""
    asked, artifacts = images[0], images[0].parents[2] / "artifacts"
    record, student = bound_of(asked), load_file(asked / "model.safetensors")
    parts = [load_file(file) for file in artifacts.glob("images/[!.]*/tensors.safetensors")]
    teachers = [
        load_file(file) for stage in ("local", "pretrain") for file in artifacts.glob(f"{stage}/*/*.safetensors")
    ]
    assert len(teachers) == 4
    means, starts = {}, {}
    for name in ("train", "valid"):
        count = read_content(asked)["datasets"]["transfer"][name]
        (part,) = [one for one in parts if len(one["labels"]) == count and (one["labels"] == -1).all()]
        x = part["pixels"].double() / (255 if part["pixels"].dtype == torch.uint8 else 1)
        x = ((x - part["mean"]) / part["std"]).flatten(1)
        p, *qs = (_mlp(one, x) for one in (student, *teachers))
        means[name], starts[name] = (
            np.mean([math.sqrt(0.5) * float((one - q).abs().sum(1).mean()) for q in qs]) for one in (p, qs[-1])
        )
    for name, mean in means.items():
        assert record["loss"][name] == pytest.approx(mean, rel=1e-4)
    gap, chance = means["valid"] - means["train"], starts["valid"] - starts["train"]
    assert record["loss"]["gap"] == pytest.approx(gap, abs=1e-5)
    assert record["loss"]["gap_less_start"] == pytest.approx(gap - chance, abs=1e-5) and abs(chance) > 1e-4


def _mlp(weights, x):
    weights = {name: tensor.double() for name, tensor in weights.items()}
    hidden = torch.relu(x @ weights["layers.0.weight"].T + weights["layers.0.bias"])
    return torch.softmax(hidden @ weights["head.weight"].T + weights["head.bias"], 1)


def test_bound_notes_training_differences_within_80_columns(knot_run, tmp_path, capsys):
    shutil.copytree(knot_run.folder.parents[2], tmp_path / "out")
    folder = tmp_path / "out" / knot_run.folder.relative_to(knot_run.folder.parents[2])
    assert main(["bound", folder.name, f"paths.output_dir={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out.splitlines()
    weights, epsilon = (next(line for line in said if line.startswith(start)) for start in ("weights: ", "epsilon: "))
    assert "not normalized in training (method.normalize=false)" in weights and "they are normalized" in weights
    assert epsilon == "epsilon: trained at 0.001, but the bound is for the exact loss (eps = 0)."
    record = bound_of(folder)
    assert {row["class"] for row in record["rows"]} == {"last_layer", "held-out"}
    assert record["undeclared"] == {}
    console = Console(file=StringIO(), width=80, force_terminal=False)
    console.print(bound_table("a run", record))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("Hoeffding  held-out") for line in lines)


def test_duplicates_are_left_out_and_counted(tmp_path):
    store = Store(tmp_path)
    words = [[5, 6], [5, 6], [5], [6, 5], [5, 6]]
    ids, lengths = torch.tensor(sum(words, []), dtype=torch.int32), [len(one) for one in words]
    tensors = {"ids": ids, "offsets": torch.tensor([0, *np.cumsum(lengths)]), "second": torch.tensor([2, 2, 1, 2, 1]),
               "labels": torch.zeros(5)}  # fmt: skip
    store.put("tokens", "x", tensors, {})
    keys = example_keys(store, ("tokens", "x"))
    seen: set[bytes] = set()
    assert first_rows(keys, seen).tolist() == [0, 2, 3, 4]  # the last has its second sentence elsewhere
    assert first_rows(keys[:3] + [b"new", b"new"], seen).tolist() == [3]
    store.put("images", "x", {"pixels": torch.tensor([[1, 2], [1, 2], [2, 1]], dtype=torch.uint8)}, {})
    assert first_rows(example_keys(store, ("images", "x")), set()).tolist() == [0, 2]


def test_bound_drops_held_out_training_texts(images, copied, monkeypatch):
    whole, real = bound_of(images[0]), bound.example_keys

    def alike(store, examples):
        """The second training text is the first again; so are two held-out ones."""
        return [b"one", b"one", *real(store, examples)[2:]]

    monkeypatch.setattr(bound, "example_keys", alike)
    assert main(["bound", str(copied[1])]) == 0
    record = bound_of(copied[1])
    for part, lost in (("train", 1), ("valid", 2)):
        assert record["dropped"][part] == lost + whole["dropped"][part]
        assert record["texts"][part] == whole["texts"][part] - lost
    assert record["loss"]["train"] != whole["loss"]["train"]


def test_bound_rejects_unsuitable_runs_and_arguments(tmp_path, capsys, images, fedavg_run):
    teachers = run(tmp_path, [word for word in replaced(TINY_PARTIES, "method=teachers") if "bias" not in word])
    federated = tmp_path / fedavg_run.folder.name
    shutil.copytree(fedavg_run.folder, federated)
    for words in (
        ["nowhere", f"paths.output_dir={tmp_path}"], [], [images[0], "paths.dta=x"], [images[0], "--delta"],
        [images[0], "paths.data_dir="], [tmp_path], [teachers], [federated],
    ):  # fmt: skip
        check(refusal(capsys, *words))
    (federated / "config.yaml").unlink()
    check(refusal(capsys, federated))


def test_bound_rejects_missing_stages_or_changed_data(images, copied, tmp_path, capsys):
    asked, folder = copied
    (distilled,) = (one for one in (folder.parents[2] / "artifacts" / "distill").iterdir() if one.name[0] != ".")
    shutil.rmtree(distilled)
    assert f"{distilled}: the distill student was deleted" in refusal(capsys, folder)
    assert not (folder / "bound.json").exists() and not distilled.exists()  # nothing is trained
    moved = tmp_path / folder.name
    shutil.copytree(folder, moved)
    assert main(["bound", str(moved), f"paths.output_dir={images[1].parents[2]}"]) == 0  # its stages are still there
    assert (moved / "bound.json").exists()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "task": {**config["task"], "max_examples": 350}}))
    check(refusal(capsys, folder))
    (asked / "bound.json").write_text("{}")
    check(refusal(capsys, asked))
