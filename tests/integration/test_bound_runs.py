"""``knot-runner bound`` and ``method.bound`` on tiny runs: what they record, say and refuse; the figure; the limit."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from knot_runner.cli.main import main
from knot_runner.engine.store import Store
from knot_runner.pipelines.bound import measure as bound
from knot_runner.pipelines.bound.measure import example_keys, first_rows
from knot_runner.records import read_result, sealed_problem
from tests.bounded import BOUNDED, run
from tests.tiny import TINY, TINY_IMAGES, TINY_PARTIES, replaced


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run that was asked for its bound, and its twin that was not, over the same stages."""
    out = tmp_path_factory.mktemp("images")
    return run(out, [*BOUNDED, "method.bound=true"]), run(out, BOUNDED)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return run(tmp_path_factory.mktemp("texts"), TINY)


def refusal(words, capsys):
    """The one line that the verb refuses with."""
    assert main(["bound", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# ----------------------------------------------------------------------------------------------------------- the record


@pytest.mark.thorough
def test_a_run_asked_for_its_bound_has_it_and_is_otherwise_its_twin(images, capsys):
    asked, plain = images
    one, other = read_result(asked), read_result(plain)
    record = json.loads((asked / "bound.json").read_text())
    assert not sealed_problem(record) and record["run_id"] == asked.name and "bound.json" in one["digest"]
    assert one["bound"] == {
        "texts": record["texts"]["train"],
        **{k: record["loss"][k] for k in ("train", "valid", "gap", "gap_less_start")},
    }
    assert one["metrics"] == other["metrics"] and "bound" not in other and not (plain / "bound.json").exists()
    for folder in images:
        assert main(["bound", str(folder)]) == 0
        said = capsys.readouterr().out
        assert said.endswith(f"{folder / 'bound.json'}\n") and "Generalisation bound (KNOT Theorem 5.2)" in said
    measured = json.loads((plain / "bound.json").read_text())
    assert not sealed_problem(measured)
    assert {**measured, "run_id": 0, "digest": 0} == {**record, "run_id": 0, "digest": 0}
    assert read_result(plain) == other  # a finished result is not edited


@pytest.mark.thorough
def test_rows_of_every_form_and_class(images):
    record = json.loads((images[0] / "bound.json").read_text())
    forms = ["printed", "derived", "sharp", "sharp_empirical"]
    wanted = [(form, name) for name in ("last_layer", "norms") for form in forms]
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
    assert record["complexity"]["norms"]["value"] > record["complexity"]["last_layer"]["value"]
    count = record["texts"]["train"]
    assert rows["sharp", "norms"]["third"] == pytest.approx(math.sqrt(2 * math.log(20) / (2 * count)))
    assert record["checkpoints"] == 3 and record["undeclared"] == {} and record["notes"] == []


def test_losses_are_those_of_the_stored_student(images):
    """The mean total variation times sqrt 2, which is W1 of one-hot labels, from the weights in the run's folder."""
    asked, _ = images
    record = json.loads((asked / "bound.json").read_text())
    store = Store(asked.parents[2] / "artefacts")
    student = load_file(asked / "model.safetensors")
    means, starts = {}, {}
    for name, count in read_result(asked)["datasets"]["transfer"].items():
        if name not in ("train", "valid"):
            continue
        parts = [one for one in (store.root / "images").iterdir() if not one.name.startswith(".")]
        stored = [load_file(one / "tensors.safetensors") for one in parts]
        (part,) = [one for one in stored if len(one["labels"]) == count and (one["labels"] == -1).all()]
        x = part["pixels"].double() / (255 if part["pixels"].dtype == torch.uint8 else 1)
        x = ((x - part["mean"]) / part["std"]).flatten(1)
        teachers = [
            load_file(file) for stage in ("local", "pretrain") for file in (store.root / stage).glob("*/*.safetensors")
        ]
        p, *qs = (_mlp(one, x) for one in (student, *teachers))
        means[name], starts[name] = (
            np.mean([math.sqrt(0.5) * float((one - q).abs().sum(1).mean()) for q in qs]) for one in (p, qs[-1])
        )
    assert len(teachers) == 4
    for name, mean in means.items():
        assert record["loss"][name] == pytest.approx(mean, rel=1e-4)
    gap, chance = means["valid"] - means["train"], starts["valid"] - starts["train"]
    assert record["loss"]["gap"] == pytest.approx(gap, abs=1e-5)
    assert record["loss"]["gap_less_start"] == pytest.approx(gap - chance, abs=1e-5) and abs(chance) > 1e-4


def _mlp(weights, x):
    weights = {name: tensor.double() for name, tensor in weights.items()}
    hidden = torch.relu(x @ weights["layers.0.weight"].T + weights["layers.0.bias"])
    return torch.softmax(hidden @ weights["head.weight"].T + weights["head.bias"], 1)


@pytest.mark.thorough
def test_what_was_trained_otherwise_is_said_in_a_line_each(texts, capsys, monkeypatch):
    assert main(["bound", texts.name, f"paths.out={texts.parents[2]}"]) == 0
    said = capsys.readouterr().out.splitlines()
    (weights,) = [line for line in said if line.startswith("weights: ")]
    assert "trained on their raw sum (method.normalise=false)" in weights and "divided by it here" in weights
    (epsilon,) = [line for line in said if line.startswith("epsilon: ")]
    assert "newton at 0.001; recomputed exactly (eps = 0)" in epsilon
    (norms,) = [line for line in said if line.startswith("norms: ")]
    assert "no number" in norms and "attention" in norms
    record = json.loads((texts / "bound.json").read_text())
    assert {row["class"] for row in record["rows"]} == {"last_layer", "held-out"} and set(record["undeclared"]) == {
        "norms"
    }
    own, trained = (
        float(part.split()[0]) for part in epsilon.replace(",", "").split("(eps = 0): ")[1].split(" gives ")
    )
    assert own == pytest.approx(record["loss"]["train"], abs=1e-4) and 0 < trained - own < 0.01


@pytest.mark.thorough
@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_a_terminal(texts, width):
    from io import StringIO

    from rich.console import Console

    from knot_runner.report.render.bound_view import bound_table

    main(["bound", str(texts)])
    record = json.loads((texts / "bound.json").read_text())
    console = Console(file=StringIO(), width=width, force_terminal=False)
    console.print(bound_table("a run", record))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("Hoeffding"))
    assert row.startswith("Hoeffding  held-out")


def test_duplicates_are_left_out_and_counted(tmp_path):
    store = Store(tmp_path)
    words = [[5, 6], [5, 6], [5], [6, 5], [5, 6]]
    ids, lengths = torch.tensor(sum(words, []), dtype=torch.int32), [len(one) for one in words]
    tensors = {"ids": ids, "offsets": torch.tensor([0, *np.cumsum(lengths)]), "second": torch.tensor([2, 2, 1, 2, 1]),
               "labels": torch.zeros(5)}  # fmt: skip
    store.put("tokens", "x", tensors, {})
    keys = example_keys(store, ("tokens", "x"))
    rows, seen = first_rows(keys, set())
    assert rows.tolist() == [0, 2, 3, 4]  # the last has its second sentence elsewhere
    assert first_rows(keys[:3] + [b"new", b"new"], seen)[0].tolist() == [3]
    store.put("images", "x", {"pixels": torch.tensor([[1, 2], [1, 2], [2, 1]], dtype=torch.uint8)}, {})
    assert first_rows(example_keys(store, ("images", "x")), set())[0].tolist() == [0, 2]


@pytest.mark.thorough
def test_held_out_texts_that_are_training_texts_are_left_out(images, tmp_path, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(images[1].parents[2], out)
    folder = out / images[1].relative_to(images[1].parents[2])
    whole = json.loads((images[0] / "bound.json").read_text())
    real, asked = bound.example_keys, []

    def alike(store, examples):
        """The second training text is the first again; so are two held-out ones."""
        asked.append(examples)
        keys = real(store, examples)
        return [b"one", b"one", *keys[2:]]

    monkeypatch.setattr(bound, "example_keys", alike)
    assert main(["bound", str(folder)]) == 0
    record = json.loads((folder / "bound.json").read_text())
    assert record["dropped"] == {"train": 1 + whole["dropped"]["train"], "valid": 2 + whole["dropped"]["valid"]}
    assert record["texts"] == {"train": whole["texts"]["train"] - 1, "valid": whole["texts"]["valid"] - 2}
    assert len(asked) == 2 and record["loss"]["train"] != whole["loss"]["train"]


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_is_no_finished_run_of_knot_is_refused_in_a_line(tmp_path, capsys, images):
    assert "is no folder of a run, nor the id of one below" in refusal(["nowhere", f"paths.out={tmp_path}"], capsys)
    assert "needs a finished run" in refusal([], capsys)
    assert "paths.dta: not an option of this verb (did you mean" in refusal([images[0], "paths.dta=x"], capsys)
    assert "--delta: unknown option" in refusal([images[0], "--delta"], capsys)
    assert "paths.data: has no value" in refusal([images[0], "paths.data="], capsys)
    assert "result.json: file not found" in refusal([tmp_path], capsys)
    alone = [word for word in replaced(TINY_PARTIES, "method=teachers") if "bias" not in word]
    teachers = run(tmp_path, alone)
    federated = run(tmp_path, TINY_IMAGES)
    capsys.readouterr()
    assert "is a run of teachers; the bound is of KNOT's students" in refusal([teachers], capsys)
    assert "is a run of fedavg" in refusal([federated], capsys)
    (federated / "config.yaml").unlink()
    assert "config.yaml: cannot be read" in refusal([federated], capsys)


@pytest.mark.thorough
def test_stages_or_data_that_are_gone_are_named(images, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(images[1].parents[2], out)
    folder = out / images[1].relative_to(images[1].parents[2])
    (folder / "bound.json").unlink(missing_ok=True)
    (distilled,) = (one for one in (out / "artefacts" / "distil").iterdir() if not one.name.startswith("."))
    shutil.rmtree(distilled)
    line = refusal([folder], capsys)
    assert str(distilled) in line and "the run's distil student is gone; another paths.out=DIR makes the run" in line
    assert not (folder / "bound.json").exists() and not distilled.exists()  # nothing is trained
    moved = tmp_path / folder.name
    shutil.copytree(folder, moved)
    assert main(["bound", str(moved), f"paths.out={images[1].parents[2]}"]) == 0  # its stages are still there
    assert (moved / "bound.json").exists()
    capsys.readouterr()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "task": {**config["task"], "limit": 350}}))
    assert "was made from other data than are read now; paths.data=DIR names its own" in refusal([folder], capsys)
    asked = out / images[0].relative_to(images[0].parents[2])
    (asked / "bound.json").write_text("{}")
    assert "bound.json: does not match its digest in result.json" in refusal([asked], capsys)
