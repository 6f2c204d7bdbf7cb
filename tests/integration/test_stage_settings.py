"""What a stage of texts keeps, and how long its texts are: settings that came later and change no run without them."""

from __future__ import annotations

import pytest

from knot_runner import compose
from knot_runner.data.load import load_task
from knot_runner.engine.store import Store
from knot_runner.pipelines.federations.texts import text_federation
from tests.runs import command, run
from tests.tiny import TINY


def test_text_federation_cuts_texts_by_stage(tmp_path):
    lengths = {"local": 9, "pretrain": 12, "distill": 8}
    changes = [f"training.{stage}.max_length={length}" for stage, length in lengths.items()]
    (job,) = compose([*TINY, "task.max_length=16", *changes])
    settings, store = job.settings, Store(tmp_path)
    federation = text_federation(settings, load_task(settings.task, None), store, None, None)
    expected = [(client, 9) for client in federation.clients] + [(federation.server, 12), (federation.transfer, 8)]
    assert [party for party, _ in expected] == federation.parties
    for party, length in expected:
        for split, ref in party.examples.items():
            longest = int(store.get(*ref).tensors()["offsets"].diff().max())
            assert longest == (16 if split == "test" else length)


def test_result_has_kept_epochs_and_versions(tmp_path):
    result = run(tmp_path, *TINY, "training.distill.select=last", "method.loss.solver=geomloss").result
    assert result["selected_epoch"] == 2
    assert result["kept_epochs"]["distill student"] == {"epoch": 2, "select": "last"}
    assert result["kept_epochs"]["local Cell"] == {"epoch": 1, "select": "best"} and result["selected_on"] == "valid"
    assert {"torch", "geomloss"} <= set(result["versions"])


def test_teachers_alone_are_the_result(tmp_path, capsys):
    record = command(tmp_path, *TINY, "method=teachers")
    result, kept = record.result, record.tensors("predictions")
    said = " ".join(capsys.readouterr().out.split())
    for name, own in result["teachers"].items():
        assert {measure: result["metrics"][measure][name] for measure in own} == own
    for name in result["teachers"]:
        right = kept[f"{name}.probabilities"].argmax(1) == kept[f"{name}.labels"]
        assert result["metrics"]["accuracy"][name] == pytest.approx(float(right.double().mean()))
    assert "distillation" not in said and "->" not in said and "each model on its own test set" in said
