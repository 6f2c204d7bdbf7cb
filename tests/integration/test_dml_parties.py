"""Mutual learning between KNOT's parties through the command line: whose scores are whose, what is shared, refusals."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from knot_runner import metrics
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_jobs
from tests.golden.messages import refuses
from tests.run_folders import run
from tests.tiny import TINY, TINY_PARTIES, replaced

#: Texts of four local parties and a global one.
BIASED = replaced(TINY, "task=erc")
TEXTS = [word for word in BIASED if not word.startswith("method.bias")]
IMAGES = [word for word in replaced(TINY_PARTIES, "method=dml_parties") if not word.startswith("method.bias")]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("parties")


@pytest.fixture(scope="module")
def texts(out):
    return run(out, *TEXTS, "method=dml_parties")


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.thorough
def test_every_party_is_measured_on_its_own_tests_before_and_after(texts):
    result, made = result_of(texts), load_file(texts / "predictions.safetensors")
    parties = result["parties"]
    assert parties == ["MELD", "IEMOCAP", "DyDa0", "DyDa1", "DyDa2"]
    points = np.array(result["labels"]["coordinates"])
    for when, prefix in (("metrics", ""), ("before", "before/")):
        for party in parties:
            found, labels = made[f"{prefix}{party}.probabilities"], made[f"{prefix}{party}.labels"]
            confusion = metrics.confusion(found.argmax(1), labels, len(points))
            assert result[when]["f1"][party] == pytest.approx(metrics.macro_f1(confusion))
            assert result[when]["sd"][party] == pytest.approx(metrics.semantic_distance(found, labels, points))
            assert when == "metrics" or result["teachers"][party]["f1"] == result["before"]["f1"][party]
    assert any((made[f"{party}.probabilities"] != made[f"before/{party}.probabilities"]).any() for party in parties)


@pytest.mark.thorough
def test_the_parties_are_those_of_knot_and_trained_once(out, texts):
    there = set((out / "artefacts" / "local").iterdir())
    other = result_of(run(out, *BIASED, "method=entropy_a"))
    assert set((out / "artefacts" / "local").iterdir()) == there
    assert other["baselines"] == result_of(texts)["baselines"] and "parties" not in other


@pytest.mark.thorough
def test_the_global_model_may_stand_apart(out, texts, capsys):
    apart, whole = result_of(run(out, *TEXTS, "method=dml_parties", "method.global_model=false")), result_of(texts)
    assert "each party's own model on its own test set, alone -> after mutual learning" in capsys.readouterr().out
    assert apart["parties"] == whole["parties"] and apart["before"] == whole["before"]
    for metric in ("f1", "accuracy", "sd"):
        assert apart["metrics"][metric]["DyDa2"] == apart["before"][metric]["DyDa2"]
    assert apart["metrics"]["sd"]["MELD"] not in (whole["metrics"]["sd"]["MELD"], apart["before"]["sd"]["MELD"])
    assert whole["metrics"]["sd"]["DyDa2"] != whole["before"]["sd"]["DyDa2"]


@pytest.mark.parametrize("overrides", [
    ["method.weight=-1"], ["~method.loss.name"], ["method.loss.form=jsd"], ["+method.bias.texts=3"],
    ["method.global_model=some"],
])  # fmt: skip
def test_what_does_not_fit_is_refused_when_composing(overrides):
    with refuses():
        compose_jobs([*IMAGES, *overrides], None)


def test_one_party_has_nobody_to_learn_from(tmp_path, capsys):
    alone = replaced(IMAGES, "partition=iid", "partition.clients=1", "method.global_model=false")
    alone = [word for word in alone if word.split("=")[0] not in ("partition.alpha", "partition.floor")]
    assert main([*alone, f"paths.out={tmp_path}"]) == 2
    assert "method.global_model: without the global model" in capsys.readouterr().err
    assert not list(tmp_path.glob("artefacts/local/*"))
