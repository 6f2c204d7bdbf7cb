"""A new process without data reproduces the saved predictions from the folder of a run alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.config.settings.families import family_of
from knot_runner.pipelines.clients import make_setup
from knot_runner.pipelines.context import run_context
from tests import runs
from tests.golden import adapter
from tests.golden.messages import refuses
from tests.golden.record import FILE, described
from tests.loaded_model import load_model
from tests.tiny import TINY_IMAGES, TINY_TEXTS, replaced

CONTENT = json.loads(FILE.read_text())
#: One of the golden runs for each way to keep models: global, clients', clusters' and parties' ones, and students.
ENTRIES = (
    "FedAvg", "FedPer", "soup", "FedMD", "clustered FedPer, sparse graph", "FedAvg with local batch normalization",
    "FedAvg of emotions", "KNOT Entropy-D of inference", "KNOT Entropy-E of images", "mutual learning of parties", "KD",
)  # fmt: skip
#: Kept predictions are float32, and engines sum in orders of their own.
TOLERANCE = 1e-5
CHILD = """
import json, pathlib, sys
import numpy as np
from tests.loaded_model import load_model
for folder in sys.argv[1:]:
    for at, work in enumerate(json.loads((pathlib.Path(folder) / "inputs.json").read_text())):
        inputs = np.load(f"{folder}/{work['pixels']}") if "pixels" in work else work["texts"]
        found = load_model(pathlib.Path(work["run"]), work["model"]).probabilities(inputs, work.get("pairs"))
        np.save(f"{folder}/found-{at}.npy", found)
"""


def works_of(job, run):
    """Return the name, the model and the raw examples of each saved prediction of ``run``."""
    context = run_context(job, lambda *_: None, lambda _: None)
    models = json.loads((run / "model.json").read_text())["models"]
    if family_of(context.method).training != "rounds":
        tests = {name: data.splits["test"] for name, data in context.services.parties(context).datasets.items()
                 if "test" in data.splits}  # fmt: skip
        kept = {name.removesuffix(".probabilities") for name in load_file(run / "predictions.safetensors")}
        return [(name, f"party/{name}" if f"party/{name}" in models else "student", tests[name])
                for name in tests if name in kept]  # fmt: skip
    setup = make_setup(context)
    test = setup.task.test
    seen = setup.federation.numbers
    if not any(name.startswith("client/") for name in models):
        rows = [setup.federation.clients[client].test.numpy() for client in seen]
        every = np.concatenate(rows) if setup.federation.unseen else np.arange(len(test))
        return [("test", "global", test.take(every))]
    return [("test", f"client/{client}", test.take(setup.federation.clients[client].test.numpy())) for client in seen]


def write_inputs(works, run, folder):
    lines = []
    for at, (_, model, examples) in enumerate(works):
        line = {"run": str(run), "model": model}
        if hasattr(examples, "pixels"):
            line["pixels"] = f"pixels-{at}.npy"
            np.save(folder / line["pixels"], examples.pixels)
        else:
            line |= {"texts": examples.texts, "pairs": examples.pairs}
        lines.append(line)
    (folder / "inputs.json").write_text(json.dumps(lines))


@pytest.mark.thorough
def test_kept_models_predict_from_run_folder_alone(tmp_path):
    expected = {}
    for number, name in enumerate(ENTRIES):
        entry, folder = described(CONTENT, name), tmp_path / str(number)
        (job,) = kr.compose(adapter.command(entry["method"], entry["settings"], folder / "out"))
        run = kr.run(job).folder
        works = works_of(job, run)
        assert works, name
        alone = folder / "alone" / run.name
        alone.parent.mkdir()
        run.rename(alone)
        shutil.rmtree(folder / "out")  # artifacts, such as those of stages
        write_inputs(works, alone, folder)
        expected[folder] = (name, works, load_file(alone / "predictions.safetensors"))

    environment = {key: value for key, value in os.environ.items() if key != "KNOT_DATA"}
    subprocess.run([sys.executable, "-c", CHILD, *map(str, expected)], check=True, env=environment)

    for folder, (name, works, kept) in expected.items():
        found: dict[str, list[np.ndarray]] = {}
        for at, (place, _, _) in enumerate(works):
            found.setdefault(place, []).append(np.load(folder / f"found-{at}.npy"))
        for place, parts in found.items():
            probabilities = np.concatenate(parts)
            assert np.isfinite(probabilities).all() and np.allclose(probabilities.sum(1), 1, atol=1e-5), name
            np.testing.assert_allclose(probabilities, kept[f"{place}.probabilities"], atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("file", ["model.json", "tokenizer.json", "model.safetensors"])
def test_damaged_or_missing_model_file_is_named(file, tmp_path):
    run = runs.run(tmp_path, *replaced(TINY_TEXTS, "training.rounds=1"), "method=fedavg").folder
    assert load_model(run).probabilities(["so happy today", ["so sad", "what a day"]]).shape[0] == 2
    for damage in (lambda path: path.write_bytes(path.read_bytes() + b" "), Path.unlink):
        damage(run / file)
        with refuses():
            load_model(run)


def test_oversized_personal_models_are_measured_but_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("knot_runner.pipelines.personalization.personalized.MODELS_BYTES", 1000)
    words = [*TINY_IMAGES, "method=soup", f"paths.output_dir={tmp_path}"]
    assert main(words) == 0 and "personalized models are evaluated but not saved" in capsys.readouterr().err
    (path,) = tmp_path.glob("*/*/*/result.json")
    assert "client/0" not in json.loads((path.parent / "model.json").read_text())["models"]
