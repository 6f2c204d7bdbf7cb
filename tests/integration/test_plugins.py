"""What a user adds in one file (and one YAML), without a change of the package: the examples of ``tests/plugins``."""

from __future__ import annotations

import json
import sys

import pytest
from safetensors.numpy import load_file
from sklearn.metrics import balanced_accuracy_score

from knot_runner.cli.main import main
from tests.golden.messages import refused
from tests.plugin_tables import EXAMPLES, tables_restored  # noqa: F401
from tests.tiny import TINY_IMAGES, TINY_TAUGHT, TINY_TEXTS, replaced

pytestmark = pytest.mark.usefixtures("tables_restored")


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_an_example_has_at_most_30_lines_of_code(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def test_a_metric_of_ones_own_is_measured_shown_and_compared(tmp_path, capsys):
    own = [*TINY_IMAGES, f"plugins=['{EXAMPLES / 'own_metric.py'}']", f"paths.out={tmp_path}"]
    assert main(own) == 0, capsys.readouterr().err
    (folder,) = tmp_path.glob("femnist/fedavg/*")
    stored = load_file(folder / "predictions.safetensors")
    expected = balanced_accuracy_score(stored["test.labels"], stored["test.probabilities"].argmax(1))
    value = json.loads((folder / "result.json").read_text())["metrics"]["balanced_accuracy"]["ALL"]
    assert value == pytest.approx(expected, abs=1e-12)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert rows[-1]["balanced_accuracy"] == value
    shown = capsys.readouterr().out
    assert "balanced accuracy" in shown and f"{value:.3f}".lstrip("0") in shown
    assert main(["compare", f"paths.out={tmp_path}", "--measure=balanced_accuracy"]) == 0
    assert "balanced_accuracy" in capsys.readouterr().out


def test_a_family_of_ones_own_runs_is_shown_and_found_again(tmp_path, capsys):
    own = [
        f"--config-dir={EXAMPLES / 'conf'}", *TINY_IMAGES, "method=majority",
        f"plugins=['{EXAMPLES / 'own_family.py'}']", f"paths.out={tmp_path}",
    ]  # fmt: skip
    assert main(own) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("femnist/majority/*/result.json")
    result = json.loads(path.read_text())
    share = result["metrics"]["accuracy"]["ALL"]
    assert 0 < share < 0.5 and result["kind"] == "majority"
    assert "are of the most frequent class" in capsys.readouterr().out
    before = path.stat().st_mtime_ns
    assert main([*own, "model.hidden=[9]"]) == 0 and path.stat().st_mtime_ns == before  # it reads no model
    capsys.readouterr()
    assert main([*own, "seed=1"]) == 2
    assert capsys.readouterr().err.strip() == "knot-runner: seed: method=majority draws nothing; 0 is right"


@pytest.mark.thorough
@pytest.mark.parametrize("run", [TINY_IMAGES, TINY_TEXTS], ids=["images", "texts"])
def test_a_local_loss_of_ones_own_trains_in_every_engine(run, tmp_path, capsys):
    """FedNTD: at beta=0 it is FedAvg; otherwise it is not, and all engines agree."""
    own = [f"--config-dir={EXAMPLES / 'conf'}", *run, f"plugins=['{EXAMPLES / 'own_objective.py'}']"]
    engines = ["lean", "loop"] if run is TINY_TEXTS else ["lean", "loop", "stacked"]
    runs = {engine: ["method=fedntd", f"hardware.engine={engine}"] for engine in engines}
    runs["workers"] = ["method=fedntd", "hardware.workers=2"]
    runs["none"] = ["method=fedntd", "method.options.beta=0.0"]
    runs["fedavg"] = ["method=fedavg"]
    losses = {}
    for name, overrides in runs.items():
        command = [word for word in own if not (name == "workers" and word == "hardware.workers=1")]
        assert main([*command, *overrides, f"paths.out={tmp_path / name}"]) == 0, capsys.readouterr().err
        (log,) = (tmp_path / name).glob("*/*/*/rounds.jsonl")
        losses[name] = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert losses["workers"] == losses["lean"]
    for engine in engines:
        assert losses[engine] == pytest.approx(losses["lean"], rel=1e-4)
    assert losses["none"] == pytest.approx(losses["fedavg"], rel=1e-5)
    assert losses["lean"] != pytest.approx(losses["fedavg"], rel=1e-4)


@pytest.mark.thorough
def test_local_training_of_ones_own_in_worker_processes(tmp_path, capsys):
    """FedSAM: at rho=0 it is FedAvg; otherwise it is not, whoever computes."""
    own = [f"--config-dir={EXAMPLES / 'conf'}", *TINY_IMAGES, f"plugins=['{EXAMPLES / 'own_program.py'}']"]
    runs = {
        "lean": ["method=fedsam"],
        "workers": ["method=fedsam", "hardware.workers=2"],
        "none": ["method=fedsam", "method.options.rho=0.0"],
        "fedavg": ["method=fedavg"],
    }
    losses = {}
    for name, overrides in runs.items():
        assert main([*replaced(own, *overrides), f"paths.out={tmp_path / name}"]) == 0, capsys.readouterr().err
        (log,) = (tmp_path / name).glob("*/*/*/rounds.jsonl")
        losses[name] = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
    assert losses["workers"] == losses["lean"]
    assert losses["none"] == pytest.approx(losses["fedavg"], rel=1e-5)
    assert losses["lean"] != pytest.approx(losses["fedavg"], rel=1e-4)


@pytest.mark.thorough
def test_a_term_of_ones_own(tmp_path, capsys):
    """Matching logits: its weight and ratio are recorded, and it changes what the student learns."""
    own = [
        f"--config-dir={EXAMPLES / 'conf'}", *TINY_TAUGHT,
        f"plugins=['{EXAMPLES / 'own_term.py'}']", f"paths.out={tmp_path}",
    ]  # fmt: skip
    found = {}
    for weight in (0.5, 0.0):
        words = replaced(own, "method=logit_matching", f"method.terms.logits.weight={weight}")
        assert main(words) == 0, capsys.readouterr().err
    for path in tmp_path.glob("mnist/logit_matching/*/result.json"):
        result = json.loads(path.read_text())
        found[result["terms"]["logits"]["weight"]] = result
    assert found[0.5]["terms"]["logits"]["ratio"] > 0 and found[0.0]["terms"]["logits"]["ratio"] == 0
    assert found[0.5]["metrics"] != found[0.0]["metrics"]
    assert main(replaced(own, "method=logit_matching", "method.terms.logits.weigth=1")) == 2
    assert "method.terms.logits.weigth" in capsys.readouterr().err
    assert main(replaced(own, "method=logit_matching", "+method.terms.logits.weigth=1")) == 2
    assert "method.terms.logits.weigth: there is no such setting" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_yaml_names_plug_ins_beside_it_from_wherever_it_is_used(tmp_path, capsys, monkeypatch):
    """And the run is the same one, whatever folder the study lies in."""
    names = set()
    for study in (tmp_path / "here", tmp_path / "there"):
        (study / "experiment").mkdir(parents=True)
        (study / "experiment" / "measured.yaml").write_text("# @package _global_\nplugins: [../own_metric.py]\n")
        (study / "own_metric.py").write_text((EXAMPLES / "own_metric.py").read_text())
        monkeypatch.chdir(tmp_path if study.name == "here" else study)
        sys.modules.pop("own_metric", None)
        folder = tmp_path / "out" / study.name
        own = [f"--config-dir={study}", *TINY_IMAGES, "experiment=measured", f"paths.out={folder}"]
        assert main(own) == 0, capsys.readouterr().err
        names |= {path.name for path in folder.glob("femnist/fedavg/*")}
        capsys.readouterr()
    assert len(names) == 1
    (tmp_path / "there" / "own_metric.py").unlink()
    sys.modules.pop("own_metric", None)
    assert main([*own, "seed=9"]) == 2
    where = tmp_path / "there" / "own_metric.py"
    assert f"plugins: ../own_metric.py: is not there; it was looked for as {where}" in capsys.readouterr().err
    assert main([*TINY_IMAGES, "plugins=[none.py]", f"paths.out={tmp_path}"]) == 2
    assert f"plugins: none.py: is not there; it was looked for as {tmp_path / 'there' / 'none.py'}" in (
        capsys.readouterr().err
    )


OWN_MODEL = [
    f"--config-dir={EXAMPLES / 'conf'}", *(word for word in TINY_IMAGES if not word.startswith("model.")),
    "model=separable", f"plugins=['{EXAMPLES / 'own_model.py'}']",
]  # fmt: skip


@pytest.mark.thorough
def test_a_model_of_ones_own_trains_with_every_method(tmp_path, capsys):
    """In worker processes as in the loop, bit for bit; fedper keeps the part that is named as its head."""
    logs = {}
    for name, more in {
        "lean": ["method=fedper"],
        "loop": ["method=fedper", "hardware.engine=loop"],
        "two": ["method=fedper", "hardware.workers=2"],
        "frozen": ["method=fedprox", "method.mu=0.1", "method.batchnorm=frozen"],
    }.items():
        run = [word for word in OWN_MODEL if not (name == "two" and word == "hardware.workers=1")]
        assert main([*run, *more, f"paths.out={tmp_path / name}"]) == 0, capsys.readouterr().err
        (path,) = (tmp_path / name).glob("femnist/*/*/rounds.jsonl")
        logs[name] = [json.loads(line)["loss"] for line in path.read_text().splitlines()]
    assert logs["lean"] == logs["loop"] == logs["two"]
    weights = load_file(next((tmp_path / "lean").glob("femnist/*/*/model.safetensors")))
    assert len(weights["head/0"]) == 4 * 8 * 10 + 10 and "body.2.running_mean" in weights
    frozen = load_file(next((tmp_path / "frozen").glob("femnist/*/*/model.safetensors")))
    assert not frozen["body.2.running_mean"].any() and weights["body.2.running_mean"].any()


WRONG_MODELS = """
from torch import nn
from own_model import separable

def wrong(shape, classes):
    return separable(shape, 3, 8)

def nothing(shape, classes):
    return "a model"
"""


@pytest.mark.parametrize(("more", "message"), [
    (["model.target=own_model"], "model.target: 'own_model' is not module:function"),
    (["model.target=own_model:separate"], "model.target: own_model:separate cannot be imported"),
    (["model.target=os:abort"], "model.target: module os is not one of plugins, which alone run code"),
    (["model.options.width=wide"], "model.target: own_model:separable fails (TypeError"),
    (["model.head=output"], "model.head: own_model:separable has no part 'output' with parameters (there is:"),
    (["model.target=wrong_models:wrong"], "wrong_models:wrong maps two images to [2, 3]; logits [2, 10] are right"),
    (["model.target=wrong_models:nothing"], "wrong_models:nothing returns str; a torch.nn.Module is right"),
    (["hardware.engine=stacked"], "hardware.engine: stacked does not train a model of one's own; lean (CPU) or loop"),
])  # fmt: skip
def test_a_model_that_does_not_fit_is_one_line(more, message, tmp_path, capsys):
    (tmp_path / "wrong_models.py").write_text(WRONG_MODELS)
    plugins = f"plugins=['{EXAMPLES / 'own_model.py'}','{tmp_path / 'wrong_models.py'}']"
    run = [plugins if word.startswith("plugins") else word for word in OWN_MODEL]
    wrong = ["~model.options.width"] if "wrong_models" in more[0] else []
    refused(capsys, *run, *more, *wrong, f"paths.out={tmp_path}")
    sys.modules.pop("wrong_models", None)
