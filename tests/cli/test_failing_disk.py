"""Whatever call to the disk fails, however: one line, and the same command afterwards gives the same results.
``scripts/endure.py --faults`` lets every call of a federated run fail."""

import errno
import functools
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from knot_runner.cli.main import main
from knot_runner.cli.preview import cached
from knot_runner.composing.commands import compose_all
from knot_runner.data.images import load_images
from knot_runner.pipelines.context import Services, run_context
from knot_runner.pipelines.run import complete_run
from knot_runner.util.errors import UserError
from knot_runner.util.files import refused
from tests.disk import Disk, Killed
from tests.personal_runs import PERSONAL
from tests.tiny import TINY_IMAGES, replaced

IMAGES = cached(load_images)
FEDERATED = replaced(TINY_IMAGES, "hardware.engine=loop", "training.rounds=2", "training.local_epochs=1")
#: Runs of rounds, of rounds that others share, and of stages.
PERSONALIZED = replaced(FEDERATED, "method=finetune", *PERSONAL)
#: Way to fail -> the exit code of the command.
CODES = {"EIO": 1, "EACCES": 2, "kill": None, "ENOSPC": 1, "EROFS": 2, "torn": None}
WAY_OF = {"flock": "ENOLCK", "read": "EACCES"}


@functools.cache
def composed(words):
    return compose_all(list(words))[0][0]


def once(out, overrides=(), disk=None, words=FEDERATED):
    job = composed((*replaced(words, *overrides),))
    job = replace(job, settings=replace(job.settings, paths=replace(job.settings.paths, output_dir=str(out))))
    context = run_context(job, lambda *_: None, lambda _: None, services=Services(IMAGES))
    try:
        with disk or Disk(out):
            complete_run(context)
    except (Killed, OSError, UserError) as problem:
        return problem
    return None


def records(out):
    (folder,) = [path.parent for path in Path(out).glob("*/*/*/result.json")]
    log = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    arrays = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("[!s]*.safetensors")}
    return arrays, untimed([json.loads((folder / "result.json").read_text()), *rows])


def untimed(value):
    if isinstance(value, dict):
        return {key: untimed(one) for key, one in value.items() if key not in ("seconds", "digest", "rounds.jsonl")}
    return [untimed(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The calls of an undisturbed run."""
    disk = Disk(tmp_path_factory.mktemp("undisturbed"))
    assert once(disk.root, disk=disk) is None
    return disk.calls


def test_run_resumes_after_any_kind_of_failing_call(tmp_path):
    """Each call on each kind of file fails, in every way in turn."""
    disk, words = Disk(tmp_path / "whole"), FEDERATED
    assert once(disk.root, disk=disk, words=words) is None
    kinds = {(call, re.sub(r"[0-9a-f]{12,}|\d+-\d+", "", Path(path).name)): path for call, path in disk.calls if path}
    for turn, ((call, _), path) in enumerate(list(kinds.items())[::4]):
        out, way = tmp_path / str(turn), WAY_OF.get(call) or list(CODES)[turn % 6]
        problem = once(out, disk=Disk(out, (call, path), way), words=words)
        where = (call, path, way, problem)
        if problem is None:  # the folder is there, the file is made anew, or is not needed any more
            assert call in ("mkdir", "rmdir", "unlink", "read"), where
        elif not isinstance(problem, Killed):
            assert isinstance(problem, UserError) and problem.exit_code == CODES.get(way, 2), where
            assert str(problem).startswith(f"{out}/") and "\n" not in str(problem), where
            assert not list(out.rglob("*.tmp")), where
        assert once(out, words=words) is None and records(out) == records(disk.root), where
        assert not list(out.rglob("*.tmp")), where


def test_personalization_reports_folders_that_it_cannot_delete(tmp_path, caplog):
    with Disk(tmp_path, ("rmdir", "/personalization"), "EIO"):
        assert once(tmp_path, words=PERSONALIZED) is None
    (message,) = caplog.messages
    assert message.endswith("/personalization: no longer needed, but cannot be deleted: Input/output error")


def test_file_replacement_syncs_before_and_after_rename(calls):
    """What a power loss would show and a kill cannot: the order of the calls themselves."""
    renames = [at for at, (name, _) in enumerate(calls) if name == "replace"]
    assert len(renames) > 6
    for at in renames:
        before, after = calls[:at], calls[at + 1 :]
        path = calls[at][1]
        assert re.fullmatch(r".*\.\d+-\d+\.tmp", path)
        assert before[-1] == ("fsync", path), calls[at - 4 : at + 2]
        assert ("write", path) in before[-3:]
        assert after[:2] == [(name, str(Path(path).parent)) for name in ("read", "fsync")], calls[at : at + 3]


def test_commit_writes_log_then_state_then_record(calls):
    written = [Path(path).name.split(".")[0] for name, path in calls if name == "fsync" and Path(path).suffix]
    first = written.index("rounds")
    assert written[first : first + 3] == ["rounds", "state-0", "commit"], written
    assert written.index("result") > max(at for at, name in enumerate(written) if name in ("model", "predictions"))


@pytest.mark.parametrize(("number", "files", "blocks", "message"), [
    (errno.EDQUOT, (9, 1), 2, "disk full: needs 8.0 KB, has 2.0 KB"),
    (errno.ENOSPC, (9, 0), 99, "disk full: has no inodes left"),
    (errno.EFBIG, (0, 0), 99, "disk full: has 99.0 KB, so a quota or a different limit is reached"),
])  # fmt: skip
def test_full_disk_message(number, files, blocks, message, tmp_path, monkeypatch):
    usage = SimpleNamespace(f_files=files[0], f_favail=files[1], f_bavail=blocks, f_frsize=1000)
    monkeypatch.setattr(os, "statvfs", {tmp_path: usage}.__getitem__)
    problem = refused(tmp_path / "new" / "file", OSError(number, "why"), 8000)
    assert str(problem) == f"{tmp_path}/new/file: {message} (why). Make room, then repeat the command"


#: Call and file that fail, the error, the exit code, what is said of the file.
COMMANDS = [
    ("flock", "RUN-ID", "ENOLCK", 2, "cannot be locked: No locks available. The file system does not support locks"),
    ("unlink", "own_models.safetensors", "EIO", 1, "Input/output error. Check the disk, then repeat the command"),
    ("read", "model.json", "EACCES", 2, "Permission denied"),
    ("unlink", "commit.json", "EACCES", 0, "no longer needed, but cannot be deleted: Permission denied"),
]


@pytest.mark.parametrize(("call", "file", "way", "code", "message"), COMMANDS)
def test_command_names_the_file_that_fails(call, file, way, code, message, tmp_path, capsys):
    with Disk(tmp_path, (call, file.replace("RUN-ID", composed(tuple(FEDERATED)).run_id)), way):
        assert main([*FEDERATED, f"paths.output_dir={tmp_path}"]) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: ")]
    assert line.startswith(f"knot-runner: {tmp_path}/") and f": {message}" in line
    assert not [log for log in tmp_path.rglob("log.txt") if "Traceback" in log.read_text()]
    assert main([*FEDERATED, f"paths.output_dir={tmp_path}"]) == 0


def test_run_shows_its_result_though_it_cannot_be_read(tmp_path, capsys):
    with Disk(tmp_path, ("read", "result.json"), "EIO"):
        assert main([*FEDERATED, f"paths.output_dir={tmp_path}"]) == 0
    assert "accuracy" in capsys.readouterr().out
