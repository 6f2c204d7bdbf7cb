"""Any metric of predictions, also a plug-in's: resampled by its own function, and measured in every kind of run."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import balanced_accuracy_score, recall_score

from knot_runner import metrics
from knot_runner.cli.main import main
from knot_runner.metrics import METRICS, Metric, confusion
from knot_runner.records import read_result
from knot_runner.report.claims.items import Want, replicates
from knot_runner.report.run_folders import load_runs, predictions
from knot_runner.report.statistics.intervals import RESAMPLES
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES, replaced
from tests.unit.report.claimed import claim, judged, knot

OWN = Path(__file__).parents[2] / "plugins" / "own_metric.py"


def balanced(test):
    hits, truth = np.diag(test.confusion), test.confusion.sum(1)
    return float(np.mean(hits[truth > 0] / truth[truth > 0]))


def unsure(test):
    """A metric of probabilities: a confusion table is not enough."""
    return float(1 - test.probabilities.max(1).mean())


@pytest.fixture
def own(monkeypatch):
    """Returns a function that registers a metric for one test."""

    def register(name, function, **facts):
        monkeypatch.setitem(METRICS, name, Metric(name, "higher", function, **facts))

    return register


def drawn(labels):
    """The items of every resample [B, N], as the module's docstring says that they are drawn."""
    seed = int.from_bytes(hashlib.sha256(labels.tobytes()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(0, len(labels), (RESAMPLES, len(labels)))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("on", ["MELD", "ALL"])
@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize(
    ("name", "function", "over", "oracle"),
    [
        ("balanced_accuracy", balanced, "pooled", lambda p, y: balanced_accuracy_score(y, p.argmax(1))),
        ("recall", balanced, "mean", lambda p, y: recall_score(y, p.argmax(1), labels=np.unique(y), average="macro")),
        ("unsure", unsure, "pooled", lambda p, y: 1 - p.astype(np.float64).max(1).mean()),
    ],
)  # fmt: skip
def test_replicates_of_an_own_metric_are_its_functions(factory, own, name, function, over, oracle, side, on):
    own(name, function, over=over)
    job = knot(factory, "sinkhorn_e", 0, 1.0, rows=30)
    (run,) = load_runs([job])
    prefix = "before/" if side == "before" else ""
    stored = {key: pair for key, pair in predictions(run).items() if key.startswith("before/") == bool(prefix)}
    if on != "ALL":
        stored = {prefix + on: stored[prefix + on]}
    want = Want(job.run_id, side, name, on)
    found, problems = replicates([want, Want(job.run_id, side, "f1", on)], {job.run_id: run}, "")
    assert not problems
    for b in (0, 1, 500, RESAMPLES - 1):
        parts = [(shares[drawn(labels)[b]], labels[drawn(labels)[b]]) for shares, labels in stored.values()]
        if over == "pooled":
            parts = [tuple(np.concatenate(column) for column in zip(*parts, strict=True))]
        assert found[want][b] == pytest.approx(np.mean([oracle(*part) for part in parts]), abs=1e-12)


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedavg"],
        ["method=clustered_fedavg"],
        ["method=clustered_fedavg", "method.clustering.graph=none"],
        ["method=finetune"],
        ["method=coreset_knn", "method.epochs=1"],
    ],
    ids=" ".join,
)
def test_an_own_metric_is_measured_in_every_kind_of_run(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(METRICS, "data", dict(METRICS.data))  # so that the plug-in's entry goes with the test
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)
    command = [*TINY_IMAGES, f"plugins=['{OWN}']", f"paths.out={tmp_path}", "training.small_clients=allow"]
    if "method=coreset_knn" in words:
        command = [word for word in command if not word.startswith(("model.hidden", "training."))]
    assert main(replaced(command, *words)) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("femnist/*/*/result.json")
    result, stored = read_result(path.parent), load_file(path.parent / "predictions.safetensors")
    labels, said = stored["test.labels"], stored["test.probabilities"].argmax(1)
    assert "balanced accuracy" in capsys.readouterr().out
    value = result["metrics"]["balanced_accuracy"]["ALL"]
    assert value == pytest.approx(balanced_accuracy_score(labels, said), abs=1e-12)
    table = confusion(said, labels, 10)
    assert result["metrics"]["f1"]["ALL"] == pytest.approx(metrics.macro_f1(table), abs=1e-12)
    if result["kind"] == "federated":
        last = json.loads((path.parent / "rounds.jsonl").read_text().splitlines()[-1])
        assert last["balanced_accuracy"] == pytest.approx(value, abs=1e-12) or "personalisation" in result


@pytest.mark.parametrize("value", [1, np.float32(0.5), np.int64(1), np.float64(0.25)])
def test_a_metric_may_return_any_kind_of_number(own, value):
    own("own", lambda test: value)
    probabilities = np.eye(2)
    found = metrics.measured(metrics.TestSet(probabilities, probabilities, np.array([0, 1]), None))["own"]
    assert type(found) is float and found == value


@pytest.mark.parametrize("name", ["time", "rounds", "ari", "plain_loss"])
def test_a_metric_with_the_name_of_another_measure_of_claims_is_refused(factory, own, name):
    own(name, balanced)
    with refuses():
        judged([knot(factory, "sinkhorn_e", 0, 1.0)], claim())
