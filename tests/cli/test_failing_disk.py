"""Whatever call to the disk fails, however: the same command afterwards gives the same bytes, and leaves no litter.

``scripts/endure.py --faults`` lets every call fail in every way; here every few.
"""

import functools
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.data.shared import SharedTasks
from knot_runner.engine.commit import Checkpoint
from knot_runner.pipelines.context import RunContext, Services
from knot_runner.pipelines.runs.single_run import complete_run
from knot_runner.util.errors import DiskFullError, UserError
from tests.disk import WAYS, Disk, Killed
from tests.tiny import TINY_IMAGES

IMAGES = SharedTasks().images
#: Every so many calls one fails, each time in another way.
STRIDE = 5


@functools.cache
def composed(overrides):
    (job,), _ = compose_all([*TINY_IMAGES, "hardware.engine=loop", *overrides])
    return job, job.config_yaml


def once(out, overrides=("training.rounds=2", "training.epochs=1"), disk=None):
    job, text = composed(overrides)
    job = replace(job, settings=replace(job.settings, paths=replace(job.settings.paths, out=str(out))))
    context = RunContext(
        job.settings, job.method, job.folder, text, job.run_id, lambda *_: None, lambda _: None, Services(IMAGES)
    )
    try:
        with disk or Disk(out):
            complete_run(context)
    except (Killed, OSError, UserError) as problem:
        return problem
    return None


def records(out):
    (folder,) = [path.parent for path in Path(out).glob("*/*/*/result.json")]
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for row in (*rows, result):
        row.pop("seconds")
    result.pop("digest")
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    predictions = hashlib.sha256((folder / "predictions.safetensors").read_bytes()).hexdigest()
    return weights, predictions, rows, without_digests(result)


def without_digests(value):
    if isinstance(value, dict):
        return {key: without_digests(one) for key, one in value.items() if key != "rounds.jsonl"}
    return value


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    disk = Disk(out)
    assert once(out, disk=disk) is None
    return records(out), disk.calls


@pytest.mark.parametrize("part", range(2))
def test_run_recovers_from_any_failing_disk_call(part, undisturbed, tmp_path):
    wanted, calls = undisturbed
    assert len(calls) > 40
    for turn, at in enumerate(range(part * STRIDE, len(calls), 2 * STRIDE)):
        for way in (WAYS[turn % 4], WAYS[(turn + 1) % 4]):
            out = tmp_path / f"{at}{way}"
            out.mkdir()
            problem = once(out, disk=Disk(out, at, way))
            assert way in ("kill", "torn") or "\n" not in str(problem), problem
            assert once(out) is None, (at, way, calls[at])
            assert records(out) == wanted, (at, way, calls[at])
            assert not list(out.rglob("*.tmp")), (at, way, calls[at])


def test_file_replacement_syncs_before_and_after_rename(undisturbed):
    """What a power loss would show and a kill cannot: the order of the calls themselves."""
    _, calls = undisturbed
    renames = [at for at, (name, _) in enumerate(calls) if name == "replace"]
    assert len(renames) > 6
    for at in renames:
        before, after = calls[:at], calls[at + 1 :]
        path = calls[at][1]
        assert re.fullmatch(r".*\.\d+-\d+\.tmp", path)
        assert before[-1] == ("fsync", path), calls[at - 4 : at + 2]
        assert ("write", path) in before[-3:]
        assert after[0] == ("fsync", str(Path(path).parent)), calls[at : at + 3]


def test_commit_writes_log_then_state_then_record(undisturbed):
    _, calls = undisturbed
    written = [Path(path).name.split(".")[0] for name, path in calls if name == "fsync" and Path(path).suffix]
    first = written.index("rounds")
    assert written[first : first + 3] == ["rounds", "state-0", "commit"], written
    assert written.index("result") > max(at for at, name in enumerate(written) if name in ("model", "predictions"))


FULL = {"the log": ("write", "rounds.jsonl"), "the state": ("write", "state-0"), "the record": ("write", "commit.json")}


@pytest.mark.parametrize("where", FULL)
def test_disk_full_error_names_file_and_keeps_commit(where, undisturbed, tmp_path):
    wanted, calls = undisturbed
    name, part = FULL[where]
    at = [i for i, (call, path) in enumerate(calls) if call == name and part in path][-1]  # of the last commit
    problem = once(tmp_path, disk=Disk(tmp_path, at, "ENOSPC"))
    assert isinstance(problem, DiskFullError) and problem.exit_code == 1
    assert re.search(rf"{part}.*: disk full: needs [\d.]+ (bytes|KB) \(No space left on device\)$", str(problem))
    (folder,) = tmp_path.glob("*/*/*/rounds.jsonl")
    commit = Checkpoint(folder.parent).load()
    assert commit.step < 2  # loads, whatever step it was made after
    assert once(tmp_path) is None and records(tmp_path) == wanted
