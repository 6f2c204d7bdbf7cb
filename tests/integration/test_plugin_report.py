"""Custom tables, figures, metrics and measures of claims, each in one file."""

import csv
import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import balanced_accuracy_score, f1_score

import knot_runner as kr
from knot_runner import CLAIM_MEASURES, FIGURES, METRICS, provenance
from knot_runner.cli.main import main
from knot_runner.config.plugins import load_plugins
from tests.of_papers import of_papers
from tests.runs import run
from tests.tiny import EXAMPLES, TINY_IMAGES, replaced

CONF = f"--config-dir={EXAMPLES / 'conf'}"
#: Without a task, which the presets choose.
SMALL = [word for word in TINY_IMAGES if not word.startswith("task=")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of the preset's runs, and the overrides of its commands."""
    out = tmp_path_factory.mktemp("own")
    own = [CONF, *replaced(SMALL, "training.rounds=1"), f"paths.output_dir={out}"]
    for job in kr.compose(["experiment=own_table", *own]):
        kr.run(job)
    return out, own


def accuracies(out, method):
    """Return the last accuracies of each run's clients, [runs, clients]."""
    logs = sorted(out.glob(f"femnist/{method}/*/rounds.jsonl"))
    rows = [json.loads(path.read_text().splitlines()[-1]) for path in logs]
    return np.array([[share for share in row["clients"] if share is not None] for row in rows])


def test_plugin_table_has_row_per_method(finished, capsys):
    out, own = finished
    assert main(["table", "own_table", *own]) == 0
    assert "worst tenth of clients" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "tables" / "own_table.csv").open()))
    for method in ("fedavg", "fedavg_chill"):
        found = {row["metric"]: float(row["mean"]) for row in rows if row["method"] == method}
        clients = accuracies(out, method)
        assert found["mean of all clients"] == pytest.approx(100 * clients.mean(), abs=1e-5)
        assert found["worst tenth of clients"] == pytest.approx(100 * clients.min(1).mean(), abs=1e-5)
    assert main(["table", "own_table", *own, "report.kind=fairnes"]) == 2
    assert "unknown table or figure 'fairnes' (did you mean 'fairness'?)" in capsys.readouterr().err


def test_plugin_claim_measure_is_judged(finished):
    out, own = finished
    assert main(["claims", "own_table", *own]) == 0
    (verdict,) = json.loads((out / "claims" / "own_table.json").read_text())["claims"]
    effects = [100 * accuracies(out, method).std(1) for method in ("fedavg_chill", "fedavg")]
    assert verdict["effect"] == pytest.approx(effects[0].mean() - effects[1].mean(), abs=1e-9)
    assert verdict["unit"] == "points" and verdict["seeds"] == 2 and verdict["low"] < verdict["high"]


def test_plugin_claim_skips_damaged_runs_and_requires_measure(finished, capsys):
    out, own = finished
    log = sorted(out.glob("femnist/fedavg_chill/*/rounds.jsonl"))[0]
    whole = log.read_bytes()
    log.write_bytes(whole[:-9])
    assert main(["claims", "own_table", *own]) == 0
    log.write_bytes(whole)
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 effects left out" in shown and "rounds.jsonl" in shown
    load_plugins([str(EXAMPLES / "own_claim.py")])
    CLAIM_MEASURES.data["client_spread"] = type(CLAIM_MEASURES["gap"])("points", 2, read=lambda run: None)
    assert main(["claims", "own_table", *own]) == 2
    assert "the runs do not record the measure 'client_spread'" in capsys.readouterr().err


def test_plugin_figure_appears_in_sweep_plot_and_report(tmp_path, capsys, monkeypatch):
    own = [f"--config-dir={EXAMPLES / 'conf'}", *SMALL, f"plugins=['{EXAMPLES / 'own_figure.py'}']"]
    own.append(f"paths.output_dir={tmp_path}")
    table = ["report.kind=temperatures", "+report.metrics=[accuracy]", "+report.figures=[round_seconds]"]
    lines, figure = [], tmp_path / "figures" / "own_figure.png"
    for words in (
        ["experiment=own_figure", *own],
        ["plot", "own_figure", *own],
        ["report", "own_figure", *own, *table],
    ):
        figure.unlink(missing_ok=True)
        FIGURES.pop("round_seconds", None)  # as in a new process
        sys.modules.pop("own_figure", None)
        assert main(words) == 0
        lines.append(capsys.readouterr().out)
    logs = [path.read_text().splitlines() for path in tmp_path.glob("femnist/fedavg/*/rounds.jsonl")]
    seconds = np.array([[json.loads(line)["seconds"] for line in log] for log in logs])
    line = f"fedavg: {seconds.mean():.3g} s a round"
    page = (tmp_path / "reports" / "own_figure.html").read_text()
    assert line in lines[0] and line in lines[1] and line in page
    assert "Seconds that each round took, a line per method" in page
    rows = list(csv.DictReader(figure.with_suffix(".csv").open()))
    assert [float(row["mean"]) for row in rows] == pytest.approx(seconds.mean(0), rel=1e-4)
    assert [row["seeds"] for row in rows] == ["2"] * 3
    monkeypatch.setattr(provenance, "code_version", lambda: "changed")
    assert main(words) == 0
    assert "2 stale runs shown unchanged" in capsys.readouterr().err


@pytest.mark.parametrize("words", of_papers((words,) for words in [
    ["method=fedavg"], ["method=clustered_fedavg"], ["method=clustered_fedavg", "method.clustering.graph=none"],
    ["method=finetune"], ["method=coreset_knn", "method.epochs=1"],
]), ids=" ".join)  # fmt: skip
def test_plugin_metric_is_measured_in_every_run_kind(tmp_path, words):
    command = [*TINY_IMAGES, f"plugins=['{EXAMPLES / 'own_metric.py'}']", "training.small_clients=allow"]
    if "method=coreset_knn" in words:
        command = [word for word in command if not word.startswith(("model.hidden", "training."))]
    made = run(tmp_path, *replaced(command, *words))
    stored = load_file(made.folder / "predictions.safetensors")
    labels, predicted = stored["test.labels"], stored["test.probabilities"].argmax(1)
    value = made.result["metrics"]["balanced_accuracy"]["ALL"]
    assert value == pytest.approx(balanced_accuracy_score(labels, predicted), abs=1e-12)
    f1 = f1_score(labels, predicted, average="macro", zero_division=0)
    assert made.result["metrics"]["f1"]["ALL"] == pytest.approx(f1, abs=1e-12)
    if made.result["kind"] == "federated" and "personalization" not in made.result:
        assert made.rows[-1]["balanced_accuracy"] == pytest.approx(value, abs=1e-12)
    METRICS.pop("balanced_accuracy")  # as in a new process
    del sys.modules["own_metric"]
    named = f"plugins=['{EXAMPLES / 'own_metric.py'}']"
    (compared,) = kr.compare(named, out=tmp_path, measure="balanced_accuracy").to_dict("records")
    assert value in compared.values() and "balanced_accuracy" in METRICS
