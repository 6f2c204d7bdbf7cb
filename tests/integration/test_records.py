"""A result with any changed bit is not read, and its run is repeated."""

import itertools
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from knot_runner import records
from knot_runner.cli.main import main
from knot_runner.util.files import read_json
from tests.contents import LEAST, result_with
from tests.golden.messages import refuses
from tests.tiny import TINY_IMAGES

RESULT = result_with({"metrics": LEAST["federated"]["metrics"] | {"f1": {"ALL": 1 / 3}}, "notes": ["n\u00e9"]})


def test_round_trip(tmp_path):
    written = records.write_result(tmp_path, RESULT)
    assert written == replace(RESULT, run_id=tmp_path.name, written_by=records.WRITTEN_BY, digest=written.digest)
    assert records.read_result(tmp_path) == written == records.write_result(tmp_path, written)


def test_read_result_rejects_results_of_other_folders(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        records.write_result(tmp_path / name, RESULT)
    (tmp_path / "a" / records.RESULT_FILE).replace(tmp_path / "b" / records.RESULT_FILE)
    assert records.read_result(tmp_path / "b") is None
    (tmp_path / "b").rename(tmp_path / "a2")
    assert records.read_result(tmp_path / "a2") is None  # nor of a copy under another name


FILES = ("config.yaml", "rounds.jsonl", "predictions.safetensors", "own.csv")


def finished(folder):
    """Write a finished run with some files, and return its sealed result."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"{name} of {folder.name}")
    for name in ("log.txt", "commit.json", "state-1.safetensors", "progress.json", "x.1-2.tmp", ".hidden"):
        (folder / name).write_text("passes")
    return records.write_result(folder, RESULT)


def test_result_digest_covers_all_files_that_stay(tmp_path):
    assert set(finished(tmp_path / "a").digest) == {*FILES, records.RESULT_FILE}


def test_read_record_rejects_files_differing_from_digest(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    result, _ = finished(a), finished(b)
    for name in FILES:
        path, whole = a / name, (a / name).read_bytes()
        assert records.read_record(a, result, name) == whole
        for other in (whole[:-1], whole + b"x", whole[:2] + b"#" + whole[3:], b"", (b / name).read_bytes()):
            path.write_bytes(other)
            with refuses():
                records.read_record(a, result, name)
        path.unlink()
        with refuses():
            records.read_record(a, result, name)
    (a / "vectors.safetensors").write_text("not sealed")
    with refuses():
        records.read_record(a, result, "vectors.safetensors")


def test_read_result_and_sealed_reject_other_versions(tmp_path, monkeypatch):
    monkeypatch.setattr("knot_runner.records.WRITTEN_BY", "0.0.9, layout 0")
    records.write_result(tmp_path, RESULT)
    record = records.write_sealed(tmp_path / "record.json", {"x": 1})
    monkeypatch.undo()
    message = "written by another version of knot_runner (version 0.0.9, layout 0)"
    with pytest.raises(records.OtherVersionError) as problem:
        records.require_result(tmp_path)
    assert str(problem.value) == f"{tmp_path / records.RESULT_FILE}: {message}. Repeat the command that started the run"
    assert records.result_problem(tmp_path) == str(problem.value) and records.read_result(tmp_path) is None
    assert records.sealed_problem(record) == message and records.read_sealed(tmp_path / "record.json") is None


def test_read_result_never_returns_altered_numbers(tmp_path):
    records.write_result(tmp_path, RESULT)
    good, path = records.read_result(tmp_path), tmp_path / records.RESULT_FILE
    content = path.read_bytes()
    draw = random.Random(0)
    for _ in range(500):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert records.read_result(tmp_path) in (None, good)  # white space may change without harm
    for length in range(0, len(content) - 1, 7):
        path.write_bytes(content[:length])
        assert records.read_result(tmp_path) is None


def test_clear_states_deletes_the_commit_record_first(tmp_path, monkeypatch):
    """A kill in between may leave states without a record, but no record of missing states."""
    for name in records.STATE_FILES:
        (tmp_path / name).write_text("x")
    gone, real = [], Path.unlink

    def unlink(path, **more):
        gone.append(path.name)
        real(path, **more)

    monkeypatch.setattr(Path, "unlink", unlink)
    records.clear_states(tmp_path)
    assert sorted(gone) == sorted(records.STATE_FILES) and gone[0] == "commit.json" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_readers_refuse_what_is_no_regular_file(make, tmp_path):
    make(tmp_path / "a")
    result = replace(RESULT, digest={"a": "0" * 64})
    assert records.changed_files(tmp_path, result) == {"a": "not a regular file"} and read_json(tmp_path / "a") is None
    with refuses():
        records.read_record(tmp_path, result, "a")
    make(tmp_path / records.RESULT_FILE)
    with refuses():
        records.require_result(tmp_path)


DAMAGES = {
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": lambda path: path.unlink(),
}


def test_commands_report_damaged_files_of_finished_runs(tmp_path, capsys):
    """The same command, a sweep and ``check`` report each damaged file; missing weights are only reported."""
    run = [*TINY_IMAGES, "training.rounds=1", "evaluate.matrix=end", f"paths.output_dir={tmp_path}"]
    assert main(run) == 0
    (folder,) = tmp_path.glob("femnist/*/*")
    names = {path.name for path in folder.iterdir()} - {"result.json"}
    assert names == {"clients.safetensors", "config.yaml", "model.json", "model.safetensors", "partition.json",
                     "predictions.safetensors", "rounds.jsonl"}  # fmt: skip
    commands = {"run": run, "sweep": ["-m", *run], "check": ["check", *run, "--quick"]}
    both = ("model.safetensors", "rounds.jsonl")  # of weights, and of what is read first
    for name, (how, damage) in itertools.product(sorted(names), DAMAGES.items()):
        if how != "altered" and name not in both:
            continue
        content = (folder / name).read_bytes()
        damage(folder / name)
        is_weight_removed = (name, how) == ("model.safetensors", "deleted")
        for command, words in commands.items():
            capsys.readouterr()
            assert main(words) == (0 if is_weight_removed else 2), (name, how, command)
            shown = " ".join("".join(capsys.readouterr()).split())
            problem = "file not found" if how == "deleted" else "does not match its checksum in result.json"
            assert (f"{name}: {problem}" in shown) != (is_weight_removed and command == "check"), (name, how, command)
            assert ("--stale=rerun" in shown) != (is_weight_removed and command == "check")
        assert not (tmp_path / ".stale").exists()
        (folder / name).write_bytes(content)
    assert main(run) == 0


def test_damaged_run_is_recreated_on_request(tmp_path, capsys):
    run = [*TINY_IMAGES, "training.rounds=1", f"paths.output_dir={tmp_path}"]
    assert main(run) == 0
    (folder,) = tmp_path.glob("femnist/*/*")
    content = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text("{}\n")
    assert main([*run, "--stale=keep"]) == 0 and (folder / "rounds.jsonl").read_text() == "{}\n"
    assert main([*run, "--stale=rerun"]) == 0
    assert len((folder / "rounds.jsonl").read_text()) == pytest.approx(len(content), abs=9)
    (folder / "result.json").write_text("{}")  # a damaged result is recreated unasked
    assert main(run) == 0 and json.loads((folder / "result.json").read_text())["status"] == "done"
