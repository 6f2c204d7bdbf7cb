"""Private training end to end: records, resumption, engines and refusals."""

import json
import statistics
import sys

import pytest
import torch

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.methods.around.privacy import accountant
from knot_runner.methods.around.privacy.accountant import epsilon_after, noise_for
from knot_runner.methods.contract import Sent
from knot_runner.report.compare.measures import direction
from tests.accounted import accounted, mechanism, private_of
from tests.contents import problem_of
from tests.feddf_runs import run
from tests.golden.messages import refuses
from tests.runs import RunRecord
from tests.tiny import CLIPPED, TINY_TEXTS, replaced

PRIVATE = replaced(CLIPPED, "privacy.noise_multiplier=0.5")


@accounted
def test_private_run_reports_its_epsilon_and_clipping(tmp_path, capsys):
    result, rows, _ = run(tmp_path, *PRIVATE)
    said, notes = capsys.readouterr()
    facts = result["privacy"]
    spec = mechanism(0.5, 3, 6, rounds=3, delta=6**-1.1)
    assert [row["epsilon"] for row in rows] == [epsilon_after(spec)(done) for done in (1, 2, 3)]
    assert facts["epsilon"] == rows[-1]["epsilon"] == result["metrics"]["epsilon"]["ALL"]
    assert f"(epsilon, delta) = ({facts['epsilon']:.3g}, 0.14) at user level after 3 rounds" in said
    assert "Epsilon covers the global models, not the accuracies in the records" in notes
    norms = [norm for row in rows for norm in row["update_norms"]]
    assert facts["clipped"] == pytest.approx(sum(norm > 0.2 for norm in norms) / len(norms))
    assert facts["median_norm"] == statistics.median(norms)
    assert facts["accountant"].startswith("dp-accounting ") and facts["rate"] == 0.5 and facts["rounds"] == 3
    assert main(["compare", f"paths.output_dir={tmp_path}", "--measure=privacy.epsilon"]) == 0
    assert "epsilon" in capsys.readouterr().out and direction("privacy.epsilon") == "lower"


def test_clipping_alone_needs_no_accountant(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant._library.cache_clear()
    result, rows, _ = run(tmp_path, *CLIPPED)
    facts = result["privacy"]
    for change in ({"epsilon": 3.0}, {"rate": 2.0}, {"neighbors": "none"}):  # cannot be
        assert next(iter(change)) in problem_of({**result, "privacy": {**facts, **change}})
    assert facts["epsilon"] is None and facts["accountant"] is None and "epsilon" not in result["metrics"]
    assert not any("epsilon" in row for row in rows)
    assert "adds no noise, so epsilon is infinite" in capsys.readouterr().err
    assert main([*PRIVATE, f"paths.output_dir={tmp_path / 'other'}"]) == 2
    assert "pip install 'knot_runner[privacy]'" in capsys.readouterr().err
    accountant._library.cache_clear()


@accounted
def test_final_head_epochs_cost_no_privacy(tmp_path):
    result, rows, _ = run(tmp_path, *PRIVATE, "method=fedper", "model.hidden=[8]", "method.final_head_epochs=1")
    assert len(rows) == 4 and rows[3]["epsilon"] == rows[2]["epsilon"] and result["privacy"]["rounds"] == 3


@accounted
def test_texts_and_what_their_vocabulary_tells(tmp_path):
    words = ["privacy=user_level", "method=fedavg", "method.aggregation=uniform", "training.clients_per_round=5"]
    _, _, notes = private_of(tmp_path, replaced(TINY_TEXTS, *words))
    assert "privacy: model.vocab=train uses the clients' texts, which epsilon does not cover" in notes


@accounted
@pytest.mark.parametrize(("method", "size"), [("fedavg", 1210), ("fedper", 64 * 16 + 16)])
def test_noise_larger_than_the_model_is_noted(method, size, tmp_path):
    _, _, notes = private_of(tmp_path, replaced(PRIVATE, f"method={method}", "privacy.clip_norm=5"))
    (said,) = [note for note in notes if "norm" in note]
    assert f"the noise of a round has norm {0.5 * 5 * size**0.5 / 3:.3g}, but the shared part" in said
    _, _, notes = private_of(tmp_path, replaced(PRIVATE, f"method={method}", "privacy.clip_norm=0.2"))
    assert not any("has norm" in note for note in notes)


@accounted
def test_noise_that_is_found_for_an_epsilon(tmp_path):
    asked = ["privacy.noise_multiplier=null", "privacy.epsilon=5", "privacy.delta=0.2", "training.clients_per_round=6"]
    method, _, notes = private_of(tmp_path, replaced(PRIVATE, *asked))
    found = noise_for(mechanism(0.0, 6, 6, rounds=3, delta=0.2), 5.0)
    assert method.facts(3, [])["privacy"]["noise_multiplier"] == found
    (said,) = [note for note in notes if note.startswith("privacy: ")]
    assert f"(epsilon, delta) = (5, 0.2) at user level after 3 rounds, noise multiplier {found:g}" in said
    assert "privacy.delta: 0.2 is larger than 1 / clients = 1 / 6. Use a smaller value" in notes


@accounted
def test_diverged_private_run_reports_spent_epsilon(tmp_path):
    words = replaced(PRIVATE, "training.lr=1e25", "privacy.clip_norm=1e6")
    assert main([*words, f"paths.output_dir={tmp_path}"]) == 1
    (result,) = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/*/result.json")]
    assert result["status"] == "diverged" and result["privacy"]["rounds"] == result["diverged"]["round"]
    assert result["privacy"]["epsilon"] > 0 and result["privacy"]["clipped"] is None


def test_control_variates_are_clipped_by_control_steps(tmp_path):
    words = [*CLIPPED, "method=scaffold"]
    method, federation, _ = private_of(tmp_path, [*words, "privacy.control_steps=10", "privacy.sampling=poisson"])
    sent = method.send(Sent(0, 1, {"control": torch.tensor([3.0, 4.0])}), 1)  # training.lr is 0.01, clip_norm 0.2
    assert sent.facts["norm"] == pytest.approx(10 * 0.01 * 5)
    assert sent.parts["control"].tolist() == pytest.approx([1.2, 1.6])
    assert federation.sampling == "poisson"


@accounted
def test_private_rounds_are_shared_by_equal_privacy(tmp_path, caplog):
    """Two personalizations share rounds with equal privacy; with other noise, the rounds are trained again."""
    caplog.set_level("INFO", "knot_runner")
    rows, personal = {}, [f"method.personalization.{key}=2" for key in ("epochs", "checkpoints")]
    for name, words in {"finetune": [], "soup": [], "noisier": ["privacy.noise_multiplier=0.9"]}.items():
        method = "method=finetune" if name == "finetune" else "method=soup"
        words = [*replaced(PRIVATE, method, "partition.valid=0.2", *words), *personal, f"paths.output_dir={tmp_path}"]
        record = RunRecord(kr.run(words).folder)
        rows[name], facts = record.rows, record.result["privacy"]
        assert facts["rounds"] == 3 == len(record.rows) and facts["epsilon"] == record.rows[-1]["epsilon"]  # no more
        assert caplog.text.count("trained by an earlier run and are reused") == (name != "finetune")  # once
    assert rows["soup"] == rows["finetune"] and rows["noisier"][0]["epsilon"] < rows["soup"][0]["epsilon"]


@accounted
def test_fixed_sampling_accepts_clients_that_keep_nothing(tmp_path):
    private, federation, _ = private_of(tmp_path, [*PRIVATE, "method=fedavg", "privacy.sampling=fixed"])
    assert federation.sampling == "fixed" and private.facts(0, [])["privacy"]["rate"] == 0.5
    everybody = replaced(PRIVATE, "method=scaffold", "privacy.sampling=fixed", "training.clients_per_round=6")
    assert private_of(tmp_path, everybody)[0].facts(0, [])["privacy"]["neighbors"] == "add or remove"


@accounted
def test_privacy_epsilon_rejects_unreachable_values(tmp_path, capsys):
    words = replaced(PRIVATE, "privacy.noise_multiplier=null", "training.clients_per_round=6", "privacy.epsilon=1e9")
    assert main([*words, f"paths.output_dir={tmp_path}"]) == 2
    assert "privacy.epsilon: 1e+09 is larger than" in capsys.readouterr().err
    with refuses():
        noise_for(mechanism(0.0, 60, 60, rounds=10**6, delta=1e-12), 1e-25)
