"""``knot-runner bundle`` and ``knot-runner verify`` on a small federated run: what is packed, and each answer."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from knot_runner.bundles import archive, pack
from knot_runner.bundles.rerun import RerunEnvironment, job_here, whole_because
from knot_runner.cli.main import main
from knot_runner.config.settings.methods.knot import KnotSettings
from knot_runner.records import recorded_config
from tests.bundled import bundled, members_of, small_run, tampered, tampered_config
from tests.changed_settings import CONF
from tests.golden.messages import check


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("run"), "training.evaluate_every=3")


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    return bundled(folder, tmp_path_factory.mktemp("packed") / "run.tar.gz")


def said_by(words, capsys, code=0):
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.out.splitlines() if code != 2 or said.out else said.err.splitlines()


def test_bundle_packs_sealed_files_reproducibly(folder, packed, tmp_path, capsys):
    run, result = "/".join(folder.parts[-3:]), json.loads((folder / "result.json").read_text())
    expected = {f"{run}/{name}": (folder / name).read_bytes() for name in sorted(result["digest"])}
    assert list(members_of(packed).items()) == list(expected.items())
    lines = said_by(["bundle", folder.name, f"paths.output_dir={folder.parents[2]}"], capsys)
    again = folder.parents[2] / "bundles" / f"{folder.name}.tar.gz"
    assert lines[-1] == str(again) and lines[0].startswith(f"{run}, seed 0: 7 files, ")
    assert again.read_bytes() == packed.read_bytes()
    everything = tmp_path / "all.tgz"
    said_by(["bundle", folder.parents[2], folder, f"--to={everything}"], capsys)  # a folder above it, and once more
    assert everything.read_bytes() == packed.read_bytes()


def test_bundle_omits_large_files_that_verify_compares(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pack, "LEFT_OUT_ABOVE", 1600)  # rounds.jsonl and config.yaml are larger, too
    to = tmp_path / "small.tar.gz"
    lines = said_by(["bundle", folder, f"--to={to}"], capsys)
    assert "files above 1.6 KB are not packed: model.safetensors, predictions.safetensors" in lines[1]
    assert not any(name.endswith(".safetensors") for name in members_of(to))
    lines = said_by(["verify", to], capsys)
    assert lines[0].endswith("the same bits") and "and 4 files" in lines[1]
    said_by(["bundle", folder, f"--to={to}", "--weights"], capsys)
    assert any(name.endswith("model.safetensors") for name in members_of(to))


@pytest.mark.parametrize(
    "words", ["nowhere OUT", "", "OUT", "RUN --two=x", "RUN paths.data_dir=x", "RUN --to=x.zip", "OTHER"]
)
def test_bundle_refuses_what_it_cannot_pack(words, folder, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "result.json").write_text("{}")
    places = {"OUT": f"paths.output_dir={tmp_path}", "RUN": str(folder), "OTHER": str(tmp_path / "other")}
    capsys.readouterr()
    assert main(["bundle", *(places.get(word, word) for word in words.split())]) == 2
    check(capsys.readouterr().err)


def test_bundles_have_a_largest_size(folder, packed, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(archive, "MAX_BUNDLE_BYTES", 3000)
        (said,) = said_by(["verify", packed], capsys, 2)
        assert "exceed the limits (900 files, 3.0 KB)" in said
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    (said,) = said_by(["bundle", folder, f"--to={tmp_path}/x.tar.gz"], capsys, 2)
    assert "7 files with" in said and "Pack fewer runs per bundle" in said and not (tmp_path / "x.tar.gz").exists()
    monkeypatch.setattr(pack, "MAX_FILE", 100)
    (said,) = said_by(["bundle", folder], capsys, 2)
    assert "more than the limit of a bundle, 100 bytes" in said


def test_verify_reports_same_bits_on_same_machine(folder, packed, tmp_path, capsys):
    capsys.readouterr()
    assert main(["verify", str(packed), f"paths.output_dir={tmp_path / 'new'}"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{'/'.join(folder.parts[-3:])}, seed 0: the same bits"
    assert lines[1].startswith("  compared: 3 of 3 rows of the log, ") and lines[-1] == "1 run: 1 the same bits"
    assert len(lines) == 3  # neither code nor data differ
    assert (tmp_path / "new" / "/".join(folder.parts[-3:]) / "result.json").exists()
    (line,) = said_by(["verify", packed, f"paths.output_dir={tmp_path / 'new'}"], capsys, 2)
    assert "not an empty folder" in line
    (line,) = said_by(["verify", packed, f"paths.output_dir={packed}"], capsys, 2)
    assert line == f"knot-runner: paths.output_dir={packed}: not an empty folder. Use a new folder for the reruns"


def test_verify_compares_only_first_rounds_on_request(packed, capsys, tmp_path):
    lines = said_by(["verify", packed, "--rounds=2", f"paths.output_dir={tmp_path}"], capsys)
    assert lines[0].endswith("the same bits") and lines[1] == "  compared: 2 of 3 rows of the log"
    (made,) = tmp_path.glob("*/*/*/rounds.jsonl")
    assert len(made.read_text().splitlines()) == 2
    assert "3 of 3 rows" in said_by(["verify", packed, "--rounds=3"], capsys)[1]


@pytest.mark.parametrize(
    "step, answer, code", [(1e-12, "within rounding", 0), (0.03, "within the interval", 0), (-0.6, "not the same", 1)]
)
def test_verify_judges_accuracy_changes_by_size(step, answer, code, folder, tmp_path, capsys):
    def change(result, rows):
        score = result["metrics"]["accuracy"]
        score["ALL"] = score["ALL"] + step if score["ALL"] + step >= 0 else score["ALL"] - step

    lines = said_by(["verify", tampered(folder, tmp_path, change)], capsys, code)
    assert lines[0].endswith(answer) and lines[-1] == f"1 run: 1 {answer}"
    assert any(line.startswith("  metrics.accuracy.ALL: ") for line in lines)
    shown = [line.split(":")[0] for line in lines if "95% interval" in line]
    assert shown == ([] if answer == "within rounding" else ["  accuracy ALL"])


def test_verify_reports_other_data_code_and_device(folder, tmp_path, capsys):
    def change(result, rows):
        result["data"], result["code"], result["device"] = "0" * 64, "0.1.0+abc", "cuda"
        result["files"] = [{"path": "a/train.json", "size": 1, "mtime_ns": 1, "sha256": "0" * 64}]
        rows[0]["participants"] = [0]

    lines = said_by(["verify", tampered(folder, tmp_path, change), "--rounds=1"], capsys, 1)
    assert lines[0].endswith("not the same")  # round 1 was not measured, so it has no interval
    assert "  different data: a/train.json differ" in lines
    assert any(line.startswith("  different code: code 0.1.0+abc, now ") for line in lines)
    assert "  recorded on cuda, rerun on cpu" in lines


def test_whole_because_explains_whole_reruns(folder, tmp_path, capsys):
    config = recorded_config(folder)
    job = job_here(config, RerunEnvironment(None, tmp_path), rounds=2)
    assert job.settings.training.rounds == 2 and whole_because(job) == ""
    settings = dataclasses.replace(job.settings, method=object.__new__(KnotSettings))
    other = dataclasses.replace(job, settings=settings)
    assert whole_because(other) == "has no rounds"
    privacy = yaml.safe_load((CONF / "privacy" / "user_level.yaml").read_text())
    privacy |= {"noise_multiplier": None, "epsilon": 3.0}
    config = {**config, "privacy": privacy, "method": {**config["method"], "aggregation": "uniform"}}
    assert "privacy.epsilon" in whole_because(job_here(config, RerunEnvironment(None, tmp_path)))
    config["privacy"] = {**privacy, "noise_multiplier": 1.0, "epsilon": None}
    assert whole_because(job_here(config, RerunEnvironment(None, tmp_path))) == ""


def test_fedsoup_is_made_again_whole(tmp_path, capsys):
    path = bundled(small_run(tmp_path / "out", "method=fedsoup", "training.rounds=2"), tmp_path / "run.tar.gz")
    lines = said_by(["verify", path, "--rounds=1"], capsys)
    assert "method.start" in lines[1] and "2 of 2 rows" in lines[2] and lines[0].endswith("the same bits")


def test_verify_reports_a_run_without_its_data(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("KNOT_DATA", raising=False)
    path = tampered_config(folder, tmp_path, "source: embedded", "source: local")
    lines = said_by(["verify", path], capsys, 2)
    assert lines[0].endswith("not rerun") and "Run 'knot-runner data femnist'" in lines[1]
    assert lines[-1] == "1 run: 1 not rerun"
