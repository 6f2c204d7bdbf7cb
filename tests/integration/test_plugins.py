"""The examples of ``tests/plugins``, which extend the package with one Python file and one YAML file each."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.golden.messages import refused
from tests.runs import run
from tests.tiny import EXAMPLES, TINY_IMAGES, TINY_PARTIES, replaced


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_plugin_examples_have_at_most_30_lines(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def own(plugin, small, *overrides):
    return replaced([f"--config-dir={EXAMPLES / 'conf'}", *small, f"plugins=['{EXAMPLES / plugin}']"], *overrides)


def losses(runs, base, out):
    found = {}
    for name, words in runs.items():
        found[name] = [row["loss"] for row in run(out / name, *replaced(base, *words.split())).rows]
    return found


def test_plugin_family_of_rounds_averages_predictions(tmp_path):
    """The clients train alone; with one client, the averaged predictions equal those of FedAvg."""
    one = [word for word in TINY_IMAGES if not word.startswith("partition.")]
    words = own("ensemble.py", one, "partition=centralized", "training.rounds=1")
    ensemble, alone = (run(tmp_path / name, *words, f"method={name}") for name in ("ensemble", "fedavg"))
    arrays, expected = ensemble.tensors("predictions"), alone.tensors("predictions")
    assert torch.allclose(arrays["test.probabilities"], expected["test.probabilities"], atol=1e-6)
    assert ensemble.result["metrics"]["accuracy"] == alone.result["metrics"]["accuracy"]


def test_plugin_loss_scale_changes_student(tmp_path):
    """Twice the loss || p - q ||_1 trains another student."""
    found = [
        run(tmp_path, *own("own_loss.py", TINY_PARTIES, "method=entropy_a", "method.loss.name=distance"),
            "~method.loss.form", f"+method.loss.scale={scale}")
        for scale in (1.0, 2.0)
    ]  # fmt: skip
    first = [next(row["loss"] for row in one.rows if "loss" in row) for one in found]
    assert first[0] > 0 and found[0].result["metrics"] and not torch.equal(*(
        next(iter(one.tensors().values())) for one in found
    ))  # fmt: skip


def test_plugin_objective_trains_alike_in_every_engine(tmp_path):
    """FedNTD equals FedAvg only at beta=0, and all engines agree."""
    engines = ["lean", "loop", "stacked"]
    runs = {engine: f"method=fedntd hardware.engine={engine}" for engine in engines}
    runs |= {"none": "method=fedntd method.beta=0.0", "fedavg": "method=fedavg"}
    found = losses(runs, own("own_objective.py", TINY_IMAGES), tmp_path)
    for engine in engines:
        assert found[engine] == pytest.approx(found["lean"], rel=1e-4)
    assert found["none"] == pytest.approx(found["fedavg"], rel=1e-5)
    assert found["lean"] != pytest.approx(found["fedavg"], rel=1e-4)


@pytest.mark.parametrize(("method", "plugin", "weight", "plain"), [
    ("moon", "moon.py", "mu", "fedavg"), ("fedproto", "fedproto.py", "weight", "local"),
    ("fedsam", "own_program.py", "rho", "fedavg"),
])  # fmt: skip
def test_plugin_method_without_its_weight_is_what_it_extends(method, plugin, weight, plain, tmp_path):
    """MOON and FedProto read features; FedProto's clients send sums of features and counts of classes."""
    runs = {"none": f"method={method} method.{weight}=0.0", "own": f"method={method} method.{weight}=5.0"}
    base = own(plugin, TINY_IMAGES)
    found = losses(runs | {"plain": f"method={plain}"}, base, tmp_path)
    assert found["none"] == pytest.approx(found["plain"], rel=1e-6)
    if method != "fedsam":  # in the first round clients have no past
        assert found["own"][0] == pytest.approx(found["plain"][0], rel=1e-6)
    assert found["own"][1:] != pytest.approx(found["plain"][1:], rel=1e-4)
    if method == "fedproto":
        rows = run(tmp_path / "own", *replaced(base, *runs["own"].split())).rows
        for row in rows:
            assert row["bytes_up"] == len(row["participants"]) * 10 * (16 * 4 + 8)


def test_plugins_key_resolves_relative_to_yaml_folder(tmp_path, capsys, monkeypatch):
    names = set()
    for study in (tmp_path / "here", tmp_path / "there"):
        (study / "experiment").mkdir(parents=True)
        (study / "experiment" / "measured.yaml").write_text("# @package _global_\nplugins: [../own_metric.py]\n")
        (study / "own_metric.py").write_text((EXAMPLES / "own_metric.py").read_text())
        monkeypatch.chdir(tmp_path if study.name == "here" else study)
        sys.modules.pop("own_metric", None)
        words = [f"--config-dir={study}", *TINY_IMAGES, "experiment=measured"]
        names.add(run(tmp_path / "out" / study.name, *words).folder.name)
    assert len(names) == 1
    (tmp_path / "there" / "own_metric.py").unlink()
    sys.modules.pop("own_metric", None)
    refused(capsys, *words, "seed=9", f"paths.output_dir={tmp_path / 'refused'}")
    refused(capsys, *TINY_IMAGES, "plugins=[none.py]", f"paths.output_dir={tmp_path / 'refused'}")


OWN_MODEL = own("own_model.py", [word for word in TINY_IMAGES if not word.startswith("model.")], "model=separable")


def test_plugin_model_trains_alike_and_keeps_head(tmp_path):
    """Worker processes give the bits of the loop, and FedPer keeps the part that the model names as its head."""
    runs = {"loop": "method=fedper hardware.engine=loop", "lean": "method=fedper hardware.num_workers=2"}
    found = losses(runs, OWN_MODEL, tmp_path)
    assert found["lean"] == found["loop"]
    weights = run(tmp_path / "lean", *replaced(OWN_MODEL, "method=fedper")).tensors()
    kept = sum(part.numel() for name, part in weights.items() if name.startswith("client/0/"))
    assert kept == 4 * 8 * 10 + 10 and "body.2.running_mean" in weights
    words = replaced(OWN_MODEL, "method=fedprox", "method.mu=0.1", "method.batchnorm=frozen")
    frozen = run(tmp_path / "frozen", *words).tensors()
    assert not frozen["body.2.running_mean"].any() and weights["body.2.running_mean"].any()


WRONG_MODELS = """
from torch import nn
from own_model import separable

def wrong(shape, classes):
    return separable(shape, 3, 8)

def nothing(shape, classes):
    return "a model"
"""


@pytest.mark.parametrize("more", [
    "model.target=own_model", "model.target=own_model:separate", "model.target=os:abort", "model.options.width=wide",
    "model.head=output", "model.target=wrong_models:wrong", "model.target=wrong_models:nothing",
    "hardware.engine=stacked",
])  # fmt: skip
def test_invalid_plugin_model_is_rejected(more, tmp_path, capsys):
    (tmp_path / "wrong_models.py").write_text(WRONG_MODELS)
    plugins = f"plugins=[{EXAMPLES / 'own_model.py'},{tmp_path / 'wrong_models.py'}]"
    wrong = ["~model.options.width"] * ("wrong_models" in more)
    refused(capsys, *replaced(OWN_MODEL, plugins), more, *wrong, f"paths.output_dir={tmp_path}")
